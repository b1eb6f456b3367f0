// node ask.js SITE QUERY...: prints the answers of the site's search worker as JSON: the result pages of each query.
const fs = require('fs'), vm = require('vm'), [site, ...queries] = process.argv.slice(2)
const workers = `${site}/assets/javascripts/workers`
const index = JSON.parse(fs.readFileSync(`${site}/search.json`)), answers = {}
const pages = 3
let waiting = [...queries], query
const filter = {input: {type: 'operator', data: {operator: 'and', operands: []}}, aggregation: {input: []}}
const ask = page => self.onmessage({data: {type: 2, data: {input: query, filter, page}}})
const next = () => {
  query = waiting.shift()
  if (query === undefined) return console.log(JSON.stringify(answers))
  answers[query] = []
  ask()
}
const self = {
  postMessage(message) {
    if (message.type === 1) return next()
    if (message.type !== 3) throw new Error(`the search failed: ${JSON.stringify(message)}`)
    const {items, pagination} = message.data
    const marks = items.flatMap(item => item.matches.flatMap(match => match.value.highlight.ranges))
    if (marks.some(mark => typeof mark.value !== 'number')) throw new Error(`marks without a value: ${query}`)
    answers[query].push(items.map(item => index.items[item.id].location))
    pagination.next && answers[query].length < pages ? ask(pagination.next) : next()
  },
}
const source = fs.readdirSync(workers).map(name => fs.readFileSync(`${workers}/${name}`, 'utf8')).join('\n')
vm.runInNewContext(source, {self, postMessage: self.postMessage, Intl, structuredClone})
self.onmessage({data: {type: 0, data: index}})
