// The known errors as a list that opens, with a box that filters it; a line above each table wider than its place.
(() => {
  const filter = () => {
    const list = document.querySelector('article:has(> #errors-that-frog-diagnose-knows-in-logs)')
    if (!list) return
    const entries = []
    for (const heading of list.querySelectorAll(':scope > h3')) {
      const parts = [heading]
      for (let part = heading.nextElementSibling; part && !/^H[23]$/.test(part.tagName); part = part.nextElementSibling) parts.push(part)
      heading.tabIndex = 0
      entries.push({heading, parts, open: false, text: parts.map(part => part.textContent).join(' ').toLowerCase()})
    }
    const box = Object.assign(document.createElement('input'), {
      type: 'search', className: 'filter', placeholder: 'Words or a piece of your error message', autocomplete: 'off',
    })
    box.setAttribute('aria-label', 'Filter the errors')
    const count = Object.assign(document.createElement('p'), {className: 'filter-count'})
    count.setAttribute('role', 'status')
    const plain = text => text.toLowerCase().replace(/[\d"'`]+/g, ' ').replace(/\s+/g, ' ').trim()
    const show = () => {
      const typed = plain(box.value), words = typed.split(' ').filter(Boolean)
      let shown = 0
      for (const {heading, parts, open, text} of entries) {
        const hidden = !words.every(word => text.includes(word)), full = open || words.length > 0
        shown += !hidden
        for (const part of parts) part.hidden = hidden || (part !== heading && !full)
        heading.setAttribute('aria-expanded', full)
      }
      for (const section of list.querySelectorAll(':scope > h2')) {
        let next = section.nextElementSibling, any = false
        for (; next && next.tagName !== 'H2'; next = next.nextElementSibling) any ||= next.tagName === 'H3' && !next.hidden
        section.hidden = !any
      }
      count.textContent = words.length ? `${shown} of ${entries.length} errors` : `${entries.length} errors`
    }
    box.addEventListener('input', show)
    list.querySelector(':scope > h2').before(box, count)
    for (const entry of entries) {
      const toggle = () => (entry.open = !entry.open, show())
      entry.heading.addEventListener('click', event => event.target.closest('a') || toggle())
      entry.heading.addEventListener('keydown', event => [' ', 'Enter'].includes(event.key) && event.target === entry.heading && (event.preventDefault(), toggle()))
    }
    const openNamed = () => {
      const named = entries.find(({heading}) => heading.id === decodeURIComponent(location.hash.slice(1)))
      if (!named) return
      named.open = true
      box.value = ''
      show()
      named.heading.scrollIntoView()
    }
    addEventListener('hashchange', openNamed)
    box.value = new URLSearchParams(location.search).get('filter') ?? ''
    show()
    openNamed()
  }

  const tables = () => {
    for (const wrap of document.querySelectorAll('.md-typeset__scrollwrap')) {
      const look = () => wrap.classList.toggle('scrolls', wrap.scrollWidth > wrap.clientWidth + 1)
      new ResizeObserver(look).observe(wrap)
      look()
    }
  }

  const start = () => (filter(), tables())
  document.readyState === 'loading' ? document.addEventListener('DOMContentLoaded', start) : start()
})()
