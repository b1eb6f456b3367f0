// Players of the pictures that move. An SVG plays by itself, by CSS; a player sets the time of its animations, and takes
// another SVG when a slider moves. All SVGs of a picture are in assets/pictures/NAME.js, a script and not data, so that
// pages work from disk. Without scripts the page shows the SVG as an image.
(() => {
  const folder = document.currentScript.src.replace(/[^/]*$/, 'pictures/')
  const calm = matchMedia('(prefers-reduced-motion: reduce)')
  const waiting = {}
  window.frogPicture = (name, picture) => waiting[name].forEach(image => player(name, picture, image))

  const make = (tag, properties, ...children) => {
    const made = Object.assign(document.createElement(tag), properties)
    made.append(...children)
    return made
  }

  function player(name, picture, image) {
    const stage = make('div', {className: 'picture-stage'})
    stage.setAttribute('role', 'img')
    stage.setAttribute('aria-label', image.alt)
    const root = stage.attachShadow({mode: 'open'})
    const play = make('button', {type: 'button', className: 'picture-play'})
    const back = make('button', {type: 'button', textContent: 'Back'})
    const step = make('button', {type: 'button', textContent: 'Step'})
    const place = make('span', {className: 'picture-place'})
    const said = make('span', {className: 'picture-said'})
    said.setAttribute('aria-live', 'polite')
    const controls = make('div', {className: 'picture-controls'}, play, back, step, place)
    const figure = make('figure', {className: 'picture'}, stage, controls, said)
    figure.dataset.picture = name

    let svg, animations, steps, length, timer, stopped = calm.matches
    const places = picture.sliders.map(slider => slider.initial)

    const now = () => animations.length ? animations[0].currentTime % length : +svg.dataset.still
    const at = time => steps.findLastIndex(([start]) => start <= time + 0.5)
    const until = number => (steps[number + 1]?.[0] ?? length) - 1

    function label() {
      figure.dataset.state = stopped && !timer ? 'stopped' : 'playing'
      play.textContent = stopped ? 'Play' : 'Stop'
      place.textContent = `${at(now()) + 1} of ${steps.length}`
    }
    function move(time) {
      if (!svg.classList.contains('played')) {  // where the system asks for less motion, it begins with the user's wish
        svg.classList.add('played')
        animations = svg.getAnimations({subtree: true})
      }
      for (const animation of animations) { animation.pause(); animation.currentTime = time }
    }
    function run() { for (const animation of animations) animation.play() }
    function halt() {
      clearTimeout(timer)
      timer = undefined
      stopped = true
      for (const animation of animations) animation.pause()
      label()
    }
    function begin(time) {
      clearTimeout(timer)
      timer = undefined
      stopped = false
      move(time)
      run()
      label()
    }
    function go(change) {
      const number = (at(now()) + change + steps.length) % steps.length
      halt()
      move(calm.matches ? until(number) : steps[number][0])
      said.textContent = steps[number][1]
      if (!calm.matches) {
        run()
        timer = setTimeout(() => { halt(); move(until(number)); label() }, until(number) - steps[number][0])
      }
      label()
    }
    function take() {
      root.innerHTML = picture.scenes[places.join('-')]
      svg = root.querySelector('svg')
      svg.style.cssText = 'display:block;width:100%;height:auto'
      steps = JSON.parse(svg.dataset.steps)
      length = +svg.dataset.length
      animations = svg.getAnimations({subtree: true})
    }

    play.onclick = () => stopped ? begin(at(now()) == steps.length - 1 ? 0 : now()) : halt()
    back.onclick = () => go(-1)
    step.onclick = () => go(1)
    picture.sliders.forEach((slider, number) => {
      const shown = make('output', {textContent: slider.labels[slider.initial]})
      const words = slider.labels.some(value => isNaN(parseFloat(value)))
      const input = words
        ? make('select', {}, ...slider.labels.map((text, value) => make('option', {value, textContent: text})))
        : make('input', {type: 'range', min: 0, max: slider.labels.length - 1, step: 1})
      input.value = slider.initial
      if (!words) input.setAttribute('aria-valuetext', slider.labels[slider.initial])
      input.oninput = () => {
        places[number] = +input.value
        shown.textContent = slider.labels[input.value]
        if (!words) input.setAttribute('aria-valuetext', shown.textContent)
        take()
        if (words && !calm.matches) begin(0)
        else { halt(); move(length - 1); label() }  // the result, so that it follows the slider
        said.textContent = steps[at(now())][1]
      }
      controls.append(make('label', {}, slider.name, input, ...(words ? [] : [shown])))
    })

    image.replaceWith(figure)  // before its animations can be listed
    take()
    setInterval(() => { if (figure.dataset.state == 'playing') label() }, 300)
    new IntersectionObserver(([entry]) => {  // out of sight it rests
      if (stopped) return
      if (entry.isIntersecting) run()
      else for (const animation of animations) animation.pause()
    }).observe(figure)
    label()
  }

  const near = new IntersectionObserver(entries => {
    for (const {isIntersecting, target} of entries) {
      if (!isIntersecting) continue
      near.unobserve(target)
      const name = target.src.match(/([\w-]+)\.svg$/)[1]
      if (waiting[name]) { waiting[name].push(target); continue }
      waiting[name] = [target]
      document.head.append(make('script', {src: `${folder}${name}.js`}))
    }
  }, {rootMargin: '600px'})
  for (const image of document.querySelectorAll('img[src*="pictures/moving/"]')) near.observe(image)
})()
