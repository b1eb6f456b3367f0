// The site's search, in a worker in place of the generator's: BM25F over the sections of all pages, with the words of
// search_words.toml, which the build writes above as WORDS. The best paragraph of a section counts twice, and is shown.
(() => {
  const K = 4, SIZE = 10, PASSAGE = 60, CANDIDATES = 80, BEST = 0.5, COVER = 0.6, TITLE = 1, PHRASE = 1, TERM = 0.85, LEAST = 0.2
  const NAMED = 0.3, CHAIN = 0.4, MESSAGE = 1.5
  const FIELDS = {  // weight of a word in a field, and how much a long field weakens it
    title: {weight: 5, length: 0.5},
    asks: {weight: 4, length: 0.1},
    path: {weight: 1.5, length: 0.5},
    text: {weight: 1, length: 0.6},
  }
  const PRIOR = [1, 0.8, 0.4]  // guides, reference, internals
  const DEFINES = /^\s*(what('?s)?\b(?! (should|can|could|do i|do we|to|happens|must|if)\b).*|define|definition|meaning of|explain|difference)/i
  const ASKS_HOW = /^\s*(what (should|can|could|do|to|happens|must|if)|how|where|can|could|why|when|which|should|do|does|is|are)\b/i
  const stop = new Set(WORDS.stop), names = Object.keys(FIELDS)

  const stems = new Map()
  const stem = word => {
    if (!stems.has(word)) stems.set(word, stemOf(word))
    return stems.get(word)
  }
  const undouble = word => /([bdgkmnprt])\1$/.test(word) ? word.slice(0, -1) : word
  const stemOf = word => {
    if (word.length < 4 || /\d/.test(word) || word === 'windows') return word
    let found = word.replace(/('s)$/, '').replace(/sses$/, 'ss').replace(/ies$/, 'y').replace(/([^aious])s$/, '$1')
    for (const end of ['ization', 'isation', 'ational', 'ation', 'ments', 'ment', 'ness', 'ism', 'able', 'est', 'ing', 'ed', 'ly', 'er', 'or', 'ion']) {
      if (found.endsWith(end) && found.length - end.length >= 3) {
        found = undouble(found.slice(0, -end.length))
        break
      }
    }
    return found.length > 3 ? found.replace(/y$/, 'i').replace(/e$/, '') : found
  }

  // Words of a text with their places. HTML tags and entities have none.
  const token = /<[^>]*>|&#?\w+;|[\p{L}\p{N}]+(?:'s)?/gu
  const wordsOf = text => {
    const found = []
    for (const part of text.matchAll(token)) {
      if ('<&'.includes(part[0][0])) continue
      found.push({term: stem(part[0].toLowerCase()), start: part.index, end: part.index + part[0].length})
    }
    const joined = []
    for (let at = 0; at + 1 < found.length; at++) {
      const term = compounds.get(`${found[at].term} ${found[at + 1].term}`)
      if (term) {
        joined.push({term, start: found[at].start, end: found[at + 1].end})
        found[at].part = found[at + 1].part = true
      }
    }
    return joined.length ? found.concat(joined).sort((one, other) => one.start - other.start) : found
  }
  const compounds = new Map()
  for (const pair of WORDS.compounds) {
    const [one, other] = pair.split(' ')
    compounds.set(`${stem(one)} ${stem(other)}`, stem(one + other))
  }
  const synonyms = new Map()
  for (const group of WORDS.synonyms) {
    const terms = group.split(' ').map(stem)
    for (const term of terms) synonyms.set(term, [...new Set([...(synonyms.get(term) ?? []), ...terms])])
  }

  // Paragraphs of a section, as ranges of its words. Long ones, such as tables, are cut into parts of PASSAGE words.
  const passagesOf = (text, words) => {
    const ends = [...text.matchAll(/<\/(?:p|pre|li|blockquote)>/g)].map(part => part.index)
    const found = []
    let from = 0, next = 0
    for (let at = 0; at < words.length; at++) {
      while (ends[next] < words[at].start) next++
      const following = words[at + 1]?.start ?? Infinity
      if (at + 1 === words.length || ends[next] < following || at + 1 - from >= PASSAGE) {
        found.push([from, at + 1])
        from = at + 1
      }
    }
    return found
  }

  let items = [], average = {}, postings = new Map(), terms = [], rarities = new Map(), numShown = 0

  const build = index => {
    items = index.items.map(item => ({...item, names: namesOf(item), messages: messagesOf(item), phrases: (item.asks ?? '').split(',').map(content).filter(words => words.length > 1)}))
    postings = new Map()
    for (const name of names) average[name] = 0
    const lengths = items.map((item, id) => {
      const fields = {title: item.title, asks: item.asks ?? '', path: item.path.join(' '), text: item.text}
      const length = {}
      for (const name of names) {
        const words = wordsOf(fields[name])
        length[name] = words.length
        average[name] += words.length / items.length
        for (const {term} of words) {
          let places = postings.get(term)
          if (!places) postings.set(term, places = new Map())
          let counts = places.get(id)
          if (!counts) places.set(id, counts = {})
          counts[name] = (counts[name] ?? 0) + 1
        }
      }
      return length
    })
    for (const places of postings.values()) {
      for (const [id, counts] of places) {
        let sum = 0
        for (const name in counts) {
          const {weight, length} = FIELDS[name]
          sum += weight * counts[name] / (1 - length + length * lengths[id][name] / average[name])
        }
        places.set(id, sum / (K + sum))
      }
    }
    terms = [...postings.keys()]
    rarities = new Map()
    numShown = items.filter(item => item.tier < 2).length
  }

  // Words are as rare as guides and reference have them: internals repeat their own words in thousands of sections.
  const rarity = term => {
    if (!rarities.has(term)) {
      let count = 0
      for (const id of postings.get(term)?.keys() ?? []) count += items[id].tier < 2
      rarities.set(term, Math.log(1 + (numShown - count + 0.5) / (count + 0.5)))
    }
    return rarities.get(term)
  }

  const near = (one, other, limit) => {  // edit distance with swapped neighbours, at most limit
    if (Math.abs(one.length - other.length) > limit) return false
    let before = [], row = Array.from({length: other.length + 1}, (_, at) => at)
    for (let i = 1; i <= one.length; i++) {
      const next = [i]
      for (let j = 1; j <= other.length; j++) {
        next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (one[i - 1] !== other[j - 1]))
        if (i > 1 && j > 1 && one[i - 1] === other[j - 2] && one[i - 2] === other[j - 1]) next[j] = Math.min(next[j], before[j - 2] + 1)
      }
      if (Math.min(...next) > limit) return false
      before = row
      row = next
    }
    return row[other.length] <= limit
  }

  // The words of a question, each with its alternatives and their weights.
  const understand = input => {
    let text = input.toLowerCase()
    const more = []
    for (const [phrase, words] of Object.entries(WORDS.phrases)) {
      if (new RegExp(`\\b${phrase}\\b`).test(text)) more.push(...words.split(' '))
    }
    const all = wordsOf(text)
    const asked = contentOf(text).length ? contentOf(text) : all
    const last = asked.reduce((end, word) => Math.max(end, word.end), 0)
    const groups = new Map()
    for (const {term, end} of asked) {
      if (groups.has(term)) continue
      const options = new Map([[term, 1]])
      const add = (word, weight) => options.set(word, Math.max(weight, options.get(word) ?? 0))
      for (const word of synonyms.get(term) ?? []) add(word, word === term ? 1 : 0.55)
      const numbered = /^([a-z]{3,})\d$/.exec(term)  // "zero3" is also "ZeRO 3"
      if (numbered) add(stem(numbered[1]), 0.7)
      const unknown = !postings.has(term)
      if (term.length > 2 && (unknown || end === last && end === text.trimEnd().length && /\S$/.test(input))) {
        for (const word of terms) if (word !== term && word.startsWith(term)) add(word, 0.75 * term.length / word.length)
      }
      if (unknown && term.length > 3 && !/\d/.test(term)) {
        const limit = term.length > 7 ? 2 : 1
        for (const word of terms) if (word[0] === term[0] && near(term, word, limit)) {
          add(word, 0.7)
          for (const other of synonyms.get(word) ?? []) add(other, 0.4)
        }
      }
      const meant = unknown ? [...options.keys()].filter(word => postings.has(word)).sort((one, other) => rarity(one) - rarity(other))[0] : term
      groups.set(meant ?? term, {options, weight: 1, asked: true})
    }
    for (const word of more.map(stem)) if (!groups.has(word)) groups.set(word, {options: new Map([[word, 1]]), weight: 0.6})
    return [...groups].map(([term, group]) => {
      const known = [...group.options.keys()].filter(word => postings.has(word))
      const common = postings.has(term) ? rarity(term) : Math.min(...known.map(rarity))
      return {...group, term, rarity: common, known: known.length > 0}
    }).filter(group => group.known)
  }

  const rank = input => {
    const groups = understand(input)
    const total = groups.reduce((sum, group) => sum + group.weight * group.rarity, 0) || 1
    const scores = new Map(), covered = new Map()
    for (const {options, weight, rarity: rare} of groups) {
      const best = new Map()
      for (const [word, share] of options) {
        const worth = share * weight * rare
        for (const [id, part] of postings.get(word) ?? []) best.set(id, Math.max(best.get(id) ?? 0, worth * part))
      }
      for (const [id, part] of best) {
        scores.set(id, (scores.get(id) ?? 0) + part)
        covered.set(id, (covered.get(id) ?? 0) + weight * rare)
      }
    }
    const quoted = quotedIn(input, total)
    for (const [id, share] of quoted) {
      scores.set(id, (scores.get(id) ?? 0) + MESSAGE * share * total)
      covered.set(id, Math.max(covered.get(id) ?? 0, share * total))
    }
    const compares = /\b(differen\w+|versus|vs)\b/i.test(input)  // each word's definition answers
    const defines = DEFINES.test(input), term = defines || (!quoted.size && groups.length < 3 && !ASKS_HOW.test(input)), worth = new Map(groups.map(group => [group.term, group.rarity]))
    const query = groups.filter(group => group.asked).map(group => group.term).join(' '), isName = /_|[a-z][A-Z]/.test(input)  // a name from the code
    const spoken = wordsOf(input), said = new Set(spoken.map(word => word.term))
    const inOrder = name => name.every((word, at) => !at || !said.has(name[at - 1]) || !said.has(word) || follows(spoken, name[at - 1], word))
    // Two and three words of the question that stand next to each other, small words too: "the day before".
    const chains = new Map(), whole = spoken.filter(word => !word.part)
    for (const length of [2, 3]) eachChain(whole, length, (chain, words) => {
      if (words.every(({start, end}) => stop.has(input.slice(start, end).toLowerCase()))) return
      chains.set(chain, Math.max(...words.map(({term}) => rarity(term))))
    })
    const chained = words => {
      const met = new Set(), whole = words.filter(word => !word.part)
      for (const length of [2, 3]) eachChain(whole, length, chain => chains.has(chain) && met.add(chain))
      return [...met].reduce((sum, chain) => sum + chains.get(chain), 0)
    }
    // How much of a question one of the phrases is with which readers ask for a section, and how much of the phrase is asked.
    const shareOf = new Map(), groupOf = new Map()
    groups.forEach(({options}, at) => options.forEach((share, word) => {
      if (share > (shareOf.get(word) ?? 0)) shareOf.set(word, share), groupOf.set(word, at)
    }))
    const alike = words => {
      let asked = 0, all = 0
      const parts = new Map()
      for (const word of words) {
        const share = shareOf.get(word) ?? 0
        all += rarity(word)
        asked += rarity(word) * share
        if (share) parts.set(groupOf.get(word), Math.max(share, parts.get(groupOf.get(word)) ?? 0))
      }
      let part = 0
      for (const [at, share] of parts) part += share * groups[at].weight * groups[at].rarity
      return asked / all * part / total
    }
    const found = [...scores].map(([id, score]) => {
      const item = items[id]
      const shares = quoted.size && item.defines ? [] : item.names.map(name => name.join(' ') === query ? (item.defines ? 4 : isName || item.tier < 2 ? 2 : 0)
        : name.length && name.every(word => worth.has(word)) && (!item.defines || inOrder(name)) ? name.reduce((sum, word) => sum + worth.get(word), 0) / total : 0)
      const named = Math.max(...shares, 0) * (item.defines && term ? compares ? 4 : 2 : 1)
      const prior = PRIOR[item.tier] * (item.defines && !defines && groups.length > 2 ? TERM : 1)
      return {id, score: score * prior * (1 - COVER + COVER * (compares && item.defines && named ? 1 : covered.get(id) / total)) * (1 + TITLE * named + (compares || defines ? 0 : PHRASE * Math.max(...item.phrases.map(alike), 0)))}
    })
    found.sort((one, other) => other.score - one.score)
    const first = found.slice(0, CANDIDATES).map(({id, score}) => {
      const passage = bestPassage(items[id], groups), title = wordsOf(items[id].title)
      const named = compares || spoken.length < 2 ? 0 : NAMED * weightOf(title, groups) + CHAIN * (chained(title) + chained(textWords(items[id])))
      return {id, passage, score: score * (1 + (BEST * passage.score + named) / total)}
    })
    first.sort((one, other) => other.score - one.score)
    return {groups, found: first.filter(({score}, at) => at < 3 * SIZE || score > LEAST * first[0].score)}
  }
  // A text's words without those of questions, and a title's names: "rank" of "rank, worker (of a world)".
  const contentOf = text => wordsOf(text).filter(({start, end, part}) => !part && !stop.has(text.slice(start, end).toLowerCase()))

  // Messages that `frog diagnose` knows, as the page of known errors and the titles of troubleshooting have them. Each is a
  // list of pieces, between which anything may stand.
  const messagesOf = ({location, title, text}) => {
    const known = location.includes('known-errors') ? text.matchAll(/<li><code>(.*?)<\/code><\/li>/g)
      : location.includes('troubleshooting') ? title.matchAll(/<code>(.*?)<\/code>/g) : []
    const plain = text => text.replace(/&lt;/g, '<').replace(/&gt;/g, '>').replace(/&amp;/g, '&')
    return [...known].map(part => plain(part[1]).split('…').map(piece => piece.trim()).filter(piece => piece))
  }
  const quotes = (input, message) => {  // a single word with its case: "Killed" of a log, not "killed" of a question
    const fold = message.join(' ').includes(' ') ? text => text.toLowerCase() : text => text
    let at = 0
    return message.length > 0 && message.every(piece => {
      const from = fold(input).indexOf(fold(piece), at)
      at = from + piece.length
      return from >= 0
    })
  }
  const quotedIn = (input, total) => {  // how much of a question is a message, by section
    const shares = new Map()
    for (const [id, {messages}] of items.entries()) {
      for (const message of messages.filter(message => quotes(input, message))) {
        const worth = [...new Set(content(message.join(' ')))].reduce((sum, word) => sum + rarity(word), 0)
        shares.set(id, Math.max(Math.min(1, worth / total), shares.get(id) ?? 0))
      }
    }
    return shares
  }

  // Each run of neighbouring words of a length, as text.
  const eachChain = (words, length, use) => {
    for (let at = 0; at + length <= words.length; at++) {
      const part = words.slice(at, at + length)
      use(part.map(({term}) => term).join(' '), part)
    }
  }
  const content = text => contentOf(text).map(word => word.term)
  const namesOf = ({title, defines}) => (defines ? title.split(/[,()]/) : [title]).map(content)

  // How much of a question words contain, in the weight of its words.
  const weightOf = (words, groups) => {
    const inside = new Set(words.map(word => word.term))
    let sum = 0
    for (const {options, weight, rarity: rare} of groups) {
      let part = 0
      for (const [word, share] of options) if (inside.has(word)) part = Math.max(part, share)
      sum += part * weight * rare
    }
    return sum
  }

  const textWords = item => item.words ??= wordsOf(item.text)  // found at its first use, then kept

  const bestPassage = (item, groups) => {
    const {text} = item, words = textWords(item)
    const best = {score: 0, from: 0, to: text.length}
    for (const [from, to] of passagesOf(text, words)) {
      let score = weightOf(words.slice(from, to), groups)
      for (let at = 0; at + 1 < groups.length; at++) {
        if (follows(words.slice(from, to), groups[at].term, groups[at + 1].term)) score += 0.2 * (groups[at].rarity + groups[at + 1].rarity)
      }
      if (score > best.score) Object.assign(best, {score, from: words[from].start, to: words[to - 1].end})
    }
    return best
  }

  const follows = (words, one, other) => words.some(({term}, at) => term === one && words[at + 1]?.term === other)

  const marked = (text, groups, from = 0, to = text.length) => {
    const wanted = new Set(groups.flatMap(group => [...group.options.keys()]))
    const ranges = wordsOf(text)
      .filter(({term, start, end}) => start >= from && end <= to && wanted.has(term))
      .map(({start, end}) => ({start, end, value: end - start}))
      .sort((one, other) => one.start - other.start)
    return ranges.filter((range, at) => !at || range.start >= ranges[at - 1].end)
  }

  const answer = ({input, page}) => {
    const asked = typeof input === 'string' ? input.trim() : ''
    const {groups, found} = asked ? rank(asked) : {groups: [], found: []}
    const from = page?.from ?? 0, id = page?.id ?? Date.now(), total = found.length
    const at = place => place >= 0 && place < total ? {id, size: SIZE, from: place} : undefined
    return {
      items: found.slice(from, from + SIZE).map(({id, score, passage}) => {
        const {title, path, text} = items[id]
        const match = (field, ranges) => ({id, field, score, value: {highlight: {ranges}}})
        return {id, score, matches: [
          match('title', marked(title, groups)),
          match('path', []),
          match('text', marked(text, groups, passage.from, passage.to)),
        ]}
      }),
      query: {},
      aggregations: [],
      pagination: {total, prev: at(from - SIZE), next: at(from + SIZE)},
    }
  }

  self.onmessage = ({data}) => {
    if (data.type === 0) {
      build(data.data)
      self.postMessage({type: 1})
    } else if (data.type === 2) {
      self.postMessage({type: 3, data: answer(data.data)})
    }
  }
})()
