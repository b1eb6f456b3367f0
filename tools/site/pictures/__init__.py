"""Pictures that move, drawn from Frog's own data: schedules, collectives, formulas of memory.

    python -m tools.site.pictures

writes each picture, with its sliders' initial values, as docs/pictures/moving/NAME.svg. Such a file plays by itself,
also on a forge, and is a still where motion is not wanted. On the site the same pictures have buttons and sliders:
`assets/pictures.js` sets the time of the SVG's animations, and takes another SVG when a slider moves. So all numbers
come from Python, and none from a script.

| read in this order | the idea |
|---|---|
| `scene`     | shapes with a timeline, written as an SVG with CSS animations |
| `catalog`   | the list of pictures, and their sliders |
| `rings`, `schedules`, `memories`, `divided`, `failing` | what the pictures show |
"""
