// Appended to the generator's search worker. The worker finds and marks matches; this code orders them:
// a title that is the query itself, other titles of guides and reference, their texts, then internals.
(() => {
  const BY_TIER = [  // guides, reference, internals
    {exact: 0, title: 2, text: 5},
    {exact: 1, title: 3, text: 6},
    {exact: 4, title: 7, text: 8},
  ]
  const search = self.onmessage, send = self.postMessage.bind(self), size = 10
  let items = [], separator = / /, found = null
  self.postMessage = message => message.type === 3 ? found = message.data : send(message)
  const ask = query => (search({data: {type: 2, data: structuredClone(query)}}), found)  // the search changes its query
  const words = text => text.toLowerCase().split(separator).filter(Boolean).join(' ')

  const place = (match, input) => {
    const {title, tier} = items[match.id]
    if (title === input && /_|[a-z][A-Z]/.test(input)) return 0  // a name from the code
    const exact = title.split(/[,()]/).some(part => words(part) === words(input))
    return BY_TIER[tier][exact ? 'exact' : match.matches.some(part => part.field === 'title') ? 'title' : 'text']
  }

  // The first page and all others; a match that passed through the search twice would lose its marks.
  const everything = query => {
    const first = ask({...query, page: undefined}), {next, total} = first.pagination
    const rest = next ? ask({...query, page: {...next, size: total}}).items : []
    return {...first, items: [...first.items, ...rest]}
  }

  const answer = query => {
    if (typeof query.input !== 'string' || !query.input.trim()) return ask(query)
    const {from = 0, id = Date.now()} = query.page ?? {}
    const result = everything(query), total = result.pagination.total
    const ordered = result.items.map(item => ({item, at: place(item, query.input.trim())}))
    ordered.sort((one, other) => one.at - other.at)
    const page = at => at >= 0 && at < total ? {id, size, from: at} : undefined
    return {
      ...result,
      items: ordered.slice(from, from + size).map(({item}) => item),
      pagination: {total, prev: page(from - size), next: page(from + size)},
    }
  }

  self.onmessage = ({data}) => {
    if (data.type === 0) {
      items = data.data.items
      separator = new RegExp(data.data.config.separator, 'u')
    }
    data.type === 2 ? send({type: 3, data: answer(data.data)}) : search({data})
  }
})()
