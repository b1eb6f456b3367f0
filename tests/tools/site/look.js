// Layout problems of the current page: it scrolls sideways, a table is cut off or breaks at every word, or text has less
// contrast than WCAG AA requires.
() => {
  const faults = [], cache = new Map(), canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true})
  if (document.documentElement.scrollWidth > innerWidth) {
    const wide = [...document.querySelectorAll('article *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)
    faults.push(`scrolls sideways to ${document.documentElement.scrollWidth}: ${wide.slice(0, 3).map(e => e.outerHTML.slice(0, 80))}`)
  }
  for (const table of document.querySelectorAll('article table[data-phone]')) {
    const box = table.closest('.md-typeset__scrollwrap').getBoundingClientRect(), told = table.innerText.slice(0, 40)
    const scrolls = innerWidth > 720 || table.dataset.phone == 'scroll'
    if (box.right > innerWidth) faults.push(`a table leaves the window: ${told}`)
    if (!scrolls && table.getBoundingClientRect().right > box.right + 1) faults.push(`a table is cut off: ${told}`)
    const narrow = [...table.querySelectorAll('td')].filter(td => td.clientWidth < 80 && td.innerText.split(/\s+/).length > 4)
    if (innerWidth < 720 && narrow.length) faults.push(`a word a line: ${narrow[0].innerText.slice(0, 40)}`)
  }
  const rgba = color => {
    if (!cache.has(color)) {
      canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1)
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data
      cache.set(color, [r, g, b, a / 255])
    }
    return cache.get(color)
  }
  const over = (top, low) => [0, 1, 2].map(i => top[i] * top[3] + low[i] * (1 - top[3])).concat(1)
  const grounds = new Map()
  const ground = e => {
    if (!e) return [255, 255, 255, 1]
    if (!grounds.has(e)) {
      const own = rgba(getComputedStyle(e).backgroundColor)
      grounds.set(e, own[3] == 1 ? own : over(own, ground(e.parentElement)))
    }
    return grounds.get(e)
  }
  const clear = e => e ? getComputedStyle(e).opacity * clear(e.parentElement) : 1
  const light = c => [0.2126, 0.7152, 0.0722].reduce((sum, part, i) => {
    const v = c[i] / 255
    return sum + part * (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  }, 0)
  const faint = new Map(), kinds = new Set()
  const named = e => e ? e.tagName + e.className : ''
  for (const e of document.body.querySelectorAll('*')) {
    if (![...e.childNodes].some(n => n.nodeType == 3 && n.data.trim())) continue
    const kind = [e, e.parentElement, e.parentElement.parentElement].map(named).join()
    if (kinds.has(kind)) continue  // a page's colours depend on its classes
    const box = e.getBoundingClientRect()
    if (box.width < 2 || box.height < 2 || !e.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue
    kinds.add(kind)
    const style = getComputedStyle(e), back = ground(e), size = parseFloat(style.fontSize)
    const key = [style.color, back.map(Math.round), size, style.fontWeight].join(' ')
    if (faint.has(key)) continue
    const own = rgba(style.color), words = over([...own.slice(0, 3), own[3] * clear(e)], back)
    const [low, high] = [light(words), light(back)].sort((a, b) => a - b), ratio = (high + 0.05) / (low + 0.05)
    const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700)
    faint.set(key, ratio < (large ? 3 : 4.5) ? `${ratio.toFixed(2)}: ${e.tagName}.${e.className}: ${key}` : null)
  }
  return faults.concat([...faint.values()].filter(Boolean))
}
