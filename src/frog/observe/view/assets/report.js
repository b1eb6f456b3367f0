"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const sync = uPlot.sync("steps");
  const NUM_RANK_COLORS = 8;

  function exact(value) {
    if (value === null || value === undefined) return "–";
    if (value === 0) return "0";
    const size = Math.abs(value);
    return size >= 1e-3 && size < 1e5 ? String(Number(value.toPrecision(4))) : value.toExponential(2);
  }
  function count(value) {
    if (value === null || value === undefined) return "–";
    for (const [limit, suffix] of [[1e9, " B"], [1e6, " M"], [1e3, " k"]]) {
      if (Math.abs(value) >= 1.0 * limit) return Number((value / limit).toPrecision(4)) + suffix;
    }
    return String(Number(value.toPrecision(4)));
  }
  function power(value) {
    const exponent = Math.round(Math.log2(value));  // values come with six digits
    return Math.abs(value / 2 ** exponent - 1) < 1e-5 ? `2^${exponent}` : exact(value);
  }
  const whole = (value) => Number.isInteger(value) ? String(value) : value === null || value === undefined ? "–" : "";
  const STYLES = { exact, count, power, whole };
  const POINT_ROLES = { skipped: "--bad", lost: "--bad", joined: "--good" };

  const Y_SCALES = { power: { distr: 3, log: 2 }, whole: { range: (_, least, most) => [0, most + 1] } };

  function lineOptions(line, format) {
    const common = { label: line.label, spanGaps: false, value: (_, v) => line.text ?? format(v), points: { show: false } };
    if (line.values.length === 1) common.points = { show: true, size: 7 };  // a line of one step is a point
    if (line.role === "mean") return { ...common, stroke: color("--ink"), width: line.values.length > 1000 ? 1 : 2 };
    if (line.role === "heldout") {
      const stroke = color("--heldout"), size = line.values.filter((v) => v !== null).length <= 50 ? 8 : 4;
      return { ...common, stroke, width: 0, points: { show: true, size, fill: stroke, stroke, filter: null } };
    }
    if (line.role === "world") {
      return { ...common, stroke: color("--ink"), width: 2, paths: uPlot.paths.stepped({ align: 1 }) };
    }
    if (line.role in POINT_ROLES) {
      const stroke = color(POINT_ROLES[line.role]);
      return { ...common, stroke, width: 0, points: { show: true, size: 8, fill: stroke, stroke, filter: null } };
    }
    const dash = [[], [6, 3], [2, 3], [8, 3, 2, 3]][Math.floor(line.rank / NUM_RANK_COLORS) % 4];
    return { ...common, stroke: color(`--rank-${line.rank % NUM_RANK_COLORS}`), width: 1.25, alpha: 0.75, dash };
  }

  // Where the run was resumed, or its world changed: a line through every chart. Labels that would meet take turns.
  function drawMarks(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = color("--quiet");
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    ctx.textBaseline = "top";
    const ends = [];
    for (const mark of data.marks) {
      const x = Math.round(plot.valToPos(mark.step, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      const row = [...ends, 0].findIndex((end) => end <= x);
      ends[row] = x + ctx.measureText(mark.label).width + 10 * devicePixelRatio;
      ctx.fillText(mark.label, x + 5 * devicePixelRatio, bbox.top + (3 + 14 * row) * devicePixelRatio);
    }
    ctx.restore();
  }

  function draw(element, chart) {
    const format = STYLES[chart.style];
    const axis = { stroke: color("--quiet"), grid: { stroke: color("--grid"), width: 1 },
                   ticks: { stroke: color("--line"), width: 1, size: 5 },
                   font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", labelSize: 18 };
    const wide = chart.name === "loss";
    const size = () => ({ width: element.clientWidth, height: wide ? (element.clientWidth < 500 ? 260 : 340) : 200 });
    const ownLine = chart.lines.length > 1;
    // Without the mouse in a chart the legend shows the values of the last step, and the last held-out score.
    const end = chart.steps.length - 1;
    const last = chart.lines.map(({ role, values }) => role === "heldout" ? values.findLastIndex((v) => v !== null) : end);
    const tellLast = (plot) => plot.setLegend({ idxs: [end, ...last] }, false);
    const plot = new uPlot({
      ...size(),
      padding: [8, 24, 0, 0],
      scales: { x: { time: false }, y: Y_SCALES[chart.style] ?? {} },
      cursor: { sync: { key: sync.key, setSeries: false }, focus: { prox: ownLine ? 24 : -1 }, points: { size: 6 } },
      focus: { alpha: 0.35 },
      legend: { live: true, markers: { width: 0, fill: (u, i) => u.series[i].stroke(u, i) } },
      axes: [
        { ...axis, size: 30, label: "step", labelGap: -4, values: (_, ticks) => ticks.map((v) => Number.isInteger(v) ? v.toLocaleString("en") : "") },
        { ...axis, size: 54, label: chart.unit || chart.title.toLowerCase(), values: (_, ticks) => ticks.map((v) => v === null ? "" : format(v)) },
      ],
      series: [{ label: "step", value: (_, v) => v === null ? "–" : v.toLocaleString("en") },
               ...chart.lines.map((line) => lineOptions(line, format))],
      hooks: { draw: [drawMarks], ready: [(plot) => tellLast(plot)] },
    }, [chart.steps, ...chart.lines.map((line) => line.values)], element);
    return { plot, tellLast: () => tellLast(plot), resize: () => plot.setSize(size()) };
  }

  let drawn = [];
  function drawAll() {
    for (const { plot } of drawn) plot.destroy();
    drawn = [...document.querySelectorAll("[data-chart]")].map((element) =>
      draw(element, data.charts.find((chart) => chart.name === element.dataset.chart)));
    for (const { plot } of drawn) {
      plot.over.addEventListener("mouseleave", () => setTimeout(() => drawn.forEach(({ tellLast }) => tellLast())));
    }
  }
  drawAll();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  let pending = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(pending);
    pending = requestAnimationFrame(() => drawn.forEach(({ resize }) => resize()));
  });

  const tabs = [...document.querySelectorAll("[role=tab]")];
  for (const tab of tabs) {
    tab.addEventListener("click", () => {
      for (const other of tabs) {
        other.setAttribute("aria-selected", String(other === tab));
        document.getElementById(other.getAttribute("aria-controls")).hidden = other !== tab;
      }
    });
  }
})();
