"use strict";
(() => {
  const BAR = 4, USE = 3, GUTTER = 24, SECOND = 1e6;
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const screens = { overview: byId("overview"), lanes: byId("lanes"), cursor: byId("cursor") };

  let film = null;      // as the server sends it
  let lanes = [];       // film.lanes with typed arrays
  let version = 0;      // counts films
  let stepAt = [], eventAt = [];  // times to stop at
  let eventTimes = [], eventShown = -1;  // times of the rows of events; the one that is marked
  let cursor = 0;       // in us
  let view = [0, 1];    // what the lanes show, in us
  let span = null;      // width of the view that the user chose; null: all, or the last 30 s of a live run
  let follows = false, playing = false, lastFrame = 0, drawn = "", told = "", toldAt = 0, soughtAt = -1000, spent = 0;
  let colors = {};

  // ---- the film ------------------------------------------------------------------------------------------------------

  function changedValue(before, change) {
    if (change === null || typeof change !== "object" || Array.isArray(change)) return change;
    if ("from" in change && "rows" in change) return (before ?? []).slice(0, change.from).concat(change.rows);
    return change;
  }
  function withChanges(before, changes) {
    const after = { ...before };
    for (const [name, change] of Object.entries(changes)) {
      if (change !== null && typeof change === "object" && "each" in change) {
        after[name] = before[name].map((row, i) => {
          const own = { ...row };
          for (const [field, value] of Object.entries(change.each[i])) own[field] = changedValue(row[field], value);
          return own;
        });
      } else after[name] = changedValue(before[name], change);
    }
    return after;
  }

  function rowsOf(flat, lane) {
    const order = Array.from({ length: flat.length / BAR }, (_, i) => i * BAR);
    if (order.some((i) => i && flat[i] < flat[i - BAR])) order.sort((a, b) => flat[a] - flat[b]);
    const rows = { at: new Float64Array(order.length), end: new Float64Array(order.length),
                   word: new Int32Array(order.length), number: new Float64Array(order.length), hot: new Uint8Array(order.length) };
    const waits = film.waiting[lane.rank] && film.failure !== null;
    order.forEach((from, i) => {
      rows.at[i] = flat[from];
      rows.end[i] = flat[from] + flat[from + 1];
      rows.word[i] = flat[from + 2];
      rows.number[i] = flat[from + 3];
      rows.hot[i] = waits && rows.end[i] > film.failure && film.words[rows.word[i]][0] === "collective";
    });
    return rows;
  }

  function lastBefore(values, time) {  // index of the last value <= time, or -1
    let low = 0, high = values.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] <= time) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }
  function rowAt(rows, time) {
    for (let i = lastBefore(rows.at, time), tries = 0; i >= 0 && tries < 8; i--, tries++) {
      if (rows.end[i] >= time - 5) return i;  // starts and durations are whole microseconds
    }
    return -1;
  }

  function setFilm(next) {
    const before = film, old = lanes;
    film = next;
    document.body.classList.remove("empty");
    version++;
    lanes = film.lanes.map((lane, i) => {
      const same = before && before.lanes[i] === lane && before.waiting === film.waiting && before.failure === film.failure;
      return same ? old[i] : { ...lane, bars: rowsOf(lane.bars, lane), calls: rowsOf(lane.calls, lane),
                               useAt: lane.use.filter((_, k) => k % USE === 0) };
    });
    stepAt = film.steps.filter((_, i) => i % 2 === 1);
    eventAt = [...new Set(film.events.map((event) => event.at))];
    if (!before) {
      follows = film.is_live;
      cursor = film.is_live ? film.end : film.failure ?? film.end;
      byId("speed").value = film.end <= 60 * SECOND ? "1" : "fit";
    } else if (film.is_live && !before.is_live) follows = true;
    if (before && before.is_live && !film.is_live && follows) {
      follows = false;
      span = null;
      cursor = film.failure ?? film.end;
    }
    tell(before);
    readColors();
  }

  // ---- texts ---------------------------------------------------------------------------------------------------------

  function element(tag, text, name) {
    const made = document.createElement(tag);
    if (text !== undefined && text !== null) made.textContent = text;
    if (name) made.className = name;
    return made;
  }
  const inMs = () => film.end < SECOND / 2;
  function clock(us) {
    const seconds = us / SECOND;
    if (inMs()) return `${(us / 1000).toFixed(1)} ms`;
    if (film.end < 120 * SECOND) return `${seconds.toFixed(film.end < 20 * SECOND ? 3 : 2)} s`;
    const whole = Math.floor(seconds), hours = Math.floor(whole / 3600);
    const rest = `${String(Math.floor(whole / 60) % 60).padStart(2, "0")}:${String(whole % 60).padStart(2, "0")}`;
    return `${hours ? `${hours}:` : ""}${rest}.${Math.floor((seconds % 1) * 10)}`;
  }
  function shortNumber(value) {
    if (value === null || value === undefined) return "not finite";
    if (value === 0) return "0";
    const size = Math.abs(value);
    for (const [limit, suffix] of [[1e9, " B"], [1e6, " M"], [1e4, " k"]]) {
      if (size >= limit) return Number((value / (limit === 1e4 ? 1e3 : limit)).toPrecision(4)) + suffix;
    }
    return size >= 1e-3 ? String(Number(value.toPrecision(4))) : value.toExponential(2);
  }
  const mib = (value) => value >= 10240 ? `${(value / 1024).toFixed(1)} GiB` : `${value.toLocaleString("en")} MiB`;

  function tell(before) {
    byId("name").textContent = film.name;
    document.title = `${film.name}: Frog watch`;
    const status = byId("status");
    status.textContent = film.status;
    status.className = `status status-${film.status}`;
    byId("command").textContent = film.command;
    byId("about").textContent = `${film.lanes.length} rank${film.lanes.length === 1 ? "" : "s"}`;
    byId("still").textContent = film.still_s >= 5 ? `no progress for ${Math.round(film.still_s)} s` : "";
    if (!before || before.diagnosis !== film.diagnosis) byId("finding").innerHTML = film.diagnosis;  // escaped text, and no script runs
    byId("failure").hidden = byId("failure-key").hidden = film.failure === null;
    byId("follow").hidden = byId("live-key").hidden = !film.is_live;
    for (const id of ["step-back", "step-on"]) byId(id).disabled = !stepAt.length;
    for (const id of ["event-back", "event-on"]) byId(id).disabled = !film.events.length;
    if (!before || before.events !== film.events) tellEvents();
    const nodes = byId("nodes");
    byId("nodes-section").hidden = !film.nodes.length && !film.network;
    nodes.replaceChildren(...film.nodes.map((node) => {
      const row = element("tr");
      row.append(element("td", node.node, "num"), element("td", node.host), element("td", node.ranks.join(", ")));
      return row;
    }));
    byId("network").textContent = film.network;
    byId("notes-section").hidden = !film.notes.length && !data.written;
    const written = data.written ? [`Saved on ${data.written}. The page holds the whole run and needs no network.`] : [];
    byId("notes").replaceChildren(...[...film.notes, ...written].map((note) => element("li", note)));
    buildRanks();
    buildCurves();
    buildKey();
  }

  function tellEvents() {
    eventTimes = film.events.map((event) => event.at);
    eventShown = -1;
    byId("happened").hidden = !film.events.length;
    byId("events").replaceChildren(...film.events.map((event) => {
      const row = element("li", null, event.kind === "failure" ? "failure" : ""), button = element("button");
      button.type = "button";
      button.append(element("span", clock(event.at)), element("span", event.rank === null ? "" : `rank ${event.rank}`),
                    element("span", event.text, event.kind === "failure" ? "failure" : ""));
      button.addEventListener("click", () => seek(event.at));
      row.append(button);
      return row;
    }));
  }

  const KIND_NAMES = { line: "at a line", collective: "in a collective", waits: "waits for other ranks", start: "starts",
                       ended: "reached its end", failed: "failed" };
  function buildKey() {
    const used = new Set(), hot = lanes.some((lane) => lane.bars.hot.includes(1) || lane.calls.hot.includes(1));
    for (const lane of film.lanes) {
      for (const rows of [lane.bars, lane.calls]) for (let i = 2; i < rows.length; i += BAR) used.add(film.words[rows[i]][0]);
    }
    if (hot) used.add("waits");
    const meanings = new Map();  // one color can have two
    for (const kind of used) {
      const color = kind === "line" ? "linear-gradient(90deg, var(--rank-0), var(--rank-2), var(--rank-5))" : cssColor(kind, 0);
      meanings.set(color, [...meanings.get(color) ?? [], KIND_NAMES[kind] ?? kind]);
    }
    byId("key").replaceChildren(...[...meanings].map(([color, names]) => {
      const item = element("li"), swatch = element("span", null, "swatch");
      swatch.style.background = color;
      item.append(swatch, names.join("; "));
      return item;
    }));
  }

  let cells = [];
  function buildRanks() {
    const height = rowHeight(), box = byId("ranks");
    box.style.setProperty("--row", `${height}px`);
    box.classList.toggle("two-rows", height >= 34);
    box.classList.toggle("no-cores", !film.lanes.some((lane) => lane.use.some((value, i) => i % USE === 2 && value >= 0)));
    if (cells.length === film.lanes.length && cells.length) return;
    const rowOf = (name, role, ...parts) => {
      const row = element("div", null, name);
      row.setAttribute("role", "row");
      for (const part of parts) part.setAttribute("role", role);
      row.append(...parts);
      return row;
    };
    const head = rowOf("rank-row rank-head", "columnheader", ...["rank", "what it does", "memory", "cores"].map((text) => element("span", text)));
    cells = film.lanes.map((lane) => {
      const parts = [element("span", lane.rank), element("span", null, "doing"), element("span"), element("span")];
      return { row: rowOf("rank-row", "cell", ...parts), parts, text: "" };
    });
    box.replaceChildren(head, ...cells.map((cell) => cell.row));
    byId("lanes-box").style.height = `${22 + height * film.lanes.length}px`;
    drawn = told = "";
  }
  const rowHeight = () => film.lanes.length <= 10 ? 38 : film.lanes.length <= 20 ? 28 : 20;

  // What a rank waits for in a collective of Frog's: the ranks that begin the same one later.
  function awaited(call, lane) {
    const number = lane.calls.number[call], kind = film.words[lane.calls.word[call]][1], late = [];
    let seen = 0;
    for (const other of lanes) {
      if (other === lane) continue;
      if (!other.byNumber) {
        other.byNumber = new Map();
        for (let i = 0; i < other.calls.number.length; i++) other.byNumber.set(other.calls.number[i], i);
      }
      const i = other.byNumber.get(number);
      if (i === undefined || film.words[other.calls.word[i]][1] !== kind) continue;
      seen++;
      if (other.calls.at[i] > cursor) late.push(other.rank);
    }
    return seen && late.length ? `waits for ${ranksText(late)}` : "";
  }
  function ranksText(ranks) {
    const spans = [];
    for (const rank of ranks) {
      const last = spans[spans.length - 1];
      if (last && last[1] === rank - 1) last[1] = rank;
      else spans.push([rank, rank]);
    }
    const text = spans.map(([a, b]) => a === b ? `${a}` : b === a + 1 ? `${a}, ${b}` : `${a}-${b}`).join(", ");
    return `rank${ranks.length === 1 ? "" : "s"} ${text}`;
  }

  function doing(lane) {
    const bar = rowAt(lane.bars, cursor), call = rowAt(lane.calls, cursor);
    let what = "", number = "", waits = "";
    if (bar >= 0) {
      const [kind, text] = film.words[lane.bars.word[bar]], n = lane.bars.number[bar];
      what = text;
      const comma = text.indexOf(", waits for ");
      if (["waits", "collective"].includes(kind) && comma >= 0) [what, waits] = [text.slice(0, comma), text.slice(comma + 2)];
      if (kind === "waits" || kind === "collective") number = n ? `no.\u00a0${n.toLocaleString("en")}` : "";
      else if (n) what = `step ${n.toLocaleString("en")}, ${text}`;
    }
    if (call >= 0 && lane.calls.end[call] > lane.calls.at[call]) {
      const n = lane.calls.number[call];
      const [, text] = film.words[lane.calls.word[call]];
      const inLine = bar >= 0 && ["waits", "collective"].includes(film.words[lane.bars.word[bar]][0]);
      what = inLine || bar < 0 ? `in ${text}` : `${what}, in ${text}`;
      number = `no.\u00a0${n.toLocaleString("en")}`;
      waits = waits || awaited(call, lane);
    }
    if (!what && isBetween(lane.bars)) what = "between phases";
    const isInside = bar < 0 || call >= 0 || ["waits", "collective"].includes(film.words[lane.bars.word[bar]][0]);
    if (!waits && isInside && film.waiting[lane.rank] && (film.failure === null || cursor >= film.failure)) waits = film.waiting[lane.rank];
    if (!film.is_live && (cursor >= film.end || (bar < 0 && call < 0 && cursor > lastOf(lane)))) [what, number] = [lane.state, ""];
    return [what, number, waits];
  }
  function isBetween(bars) {  // in a short gap of Frog's trainer
    const i = lastBefore(bars.at, cursor);
    return i >= 0 && bars.at[i + 1] - bars.end[i] < SECOND && PHASES.includes(film.words[bars.word[i]][0]);
  }
  const lastOf = (lane) => lane.bars.end.length ? lane.bars.end[lane.bars.end.length - 1] : 0;

  function tellRanks(now) {
    const moves = playing || follows || now - soughtAt < 200, key = `${version} ${cursor} ${moves} ${moves ? scrollY : 0}`;
    if (key === told || now - toldAt < 80) return;
    [told, toldAt] = [key, now];
    const [first, last] = moves ? shownRows() : [0, lanes.length];
    lanes.forEach((lane, i) => {
      if (i < first || i > last) return;  // while the moment moves, only what can be seen is written
      const [what, number, waits] = doing(lane), used = lastBefore(lane.useAt, cursor);
      const size = used >= 0 ? film.lanes[i].use[USE * used + 1] : null, cores = used >= 0 ? film.lanes[i].use[USE * used + 2] : -1;
      const text = [what, number, waits, size, cores].join("|");
      if (text === cells[i].text) return;
      cells[i].text = text;
      const [, shown, memory, cpu] = cells[i].parts;
      shown.replaceChildren(what, number ? element("i", ` ${number}`) : "", waits ? element("em", ` ${waits}`) : "");
      shown.title = [what, number, waits].filter(Boolean).join(" ");
      memory.textContent = size === null ? "" : mib(size);
      cpu.textContent = cores < 0 ? "" : (cores / 100).toFixed(2);
    });
    byId("moment").textContent = `at ${clock(cursor)}${stepText()}`;
    byId("clock").textContent = `${clock(cursor)} of ${clock(film.end)}`;
    screens.overview.setAttribute("aria-valuemax", Math.round(film.end / 1000));
    screens.overview.setAttribute("aria-valuenow", Math.round(cursor / 1000));
    screens.overview.setAttribute("aria-valuetext", `${clock(cursor)}${stepText()}`);
    tellEvent();
    for (const curve of curves) curve.tell();
  }
  function shownRows() {
    if (isNarrow()) return [0, lanes.length];
    const top = byId("ranks").getBoundingClientRect().top + 22;
    return [Math.floor(-top / rowHeight()), Math.ceil((innerHeight - top) / rowHeight())];
  }
  function tellEvent() {  // marks the events until now
    const at = lastBefore(eventTimes, cursor), rows = byId("events").children;
    if (at === eventShown) return;
    for (let i = Math.max(0, Math.min(at, eventShown)); i <= Math.max(at, eventShown) && i < rows.length; i++) {
      rows[i].classList.toggle("past", i <= at);
      rows[i].classList.toggle("now", i === at);
    }
    eventShown = at;
  }
  function stepText() {
    const i = lastBefore(stepAt, cursor);
    if (!stepAt.length) return "";
    return i < 0 ? ", before the first step ended" : `, after step ${film.steps[2 * i].toLocaleString("en")}`;
  }

  // ---- colors --------------------------------------------------------------------------------------------------------

  const PHASES = ["data", "forward", "backward", "reduce", "optimize", "zero", "evaluate", "checkpoint"];
  function cssColor(kind, word) {
    if (PHASES.includes(kind)) return `var(--phase-${kind})`;
    const named = { collective: "var(--phase-reduce)", waits: "var(--bad)", start: "var(--phase-other)", failed: "var(--bad)", ended: "var(--phase-other)" };
    return named[kind] ?? `var(--rank-${lineColor(word)})`;
  }
  const LINE_COLORS = [0, 2, 5, 3, 6, 7, 4];
  function lineColor(word) {
    let number = 0;
    for (let i = 0; i < word; i++) number += film.words[i][0] === "line";
    return LINE_COLORS[number % LINE_COLORS.length];
  }
  const probe = element("span");
  probe.hidden = true;
  document.body.append(probe);
  const known = new Map();
  function rgb(text) {
    if (!known.has(text)) {
      probe.style.color = text;
      const value = getComputedStyle(probe).color.match(/[\d.]+/g).map(Number);
      known.set(text, value.slice(0, 3));
    }
    return known.get(text);
  }
  function readColors() {
    const plain = (name) => rgb(`var(${name})`);
    colors = { page: plain("--page"), raised: plain("--raised"), ink: plain("--ink"), quiet: plain("--quiet"), line: plain("--line"),
               grid: plain("--grid"), bad: plain("--bad"), warn: plain("--warn"), good: plain("--good"),
               words: film.words.map(([kind], i) => rgb(cssColor(kind, i))) };
  }
  const css = (color, alpha = 1) => `rgba(${color.join(",")},${alpha})`;

  // ---- drawing -------------------------------------------------------------------------------------------------------

  function sized(canvas) {
    const ratio = devicePixelRatio || 1, width = Math.max(1, Math.round(canvas.clientWidth * ratio)), height = Math.max(1, Math.round(canvas.clientHeight * ratio));
    if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
    return { context: canvas.getContext("2d"), ratio, width, height };
  }
  const isNarrow = () => byId("lanes-box").clientWidth >= byId("stage").clientWidth - 2;
  const gutter = () => isNarrow() ? GUTTER : 0;

  // One row of pixels: each pixel has the mean color of what happened in its time.
  let sums = new Float32Array(0);
  function paintRow(pixels, from, width, rows, least) {
    if (sums.length < 4 * width) sums = new Float32Array(4 * width);
    sums.fill(0, 0, 4 * width);
    const scale = width / (view[1] - view[0]);
    let first = lastBefore(rows.at, view[0]);
    for (let back = 0; first > 0 && back < 8; back++) first--;
    for (let i = Math.max(0, first); i < rows.at.length && rows.at[i] <= view[1]; i++) {
      if (rows.end[i] < view[0]) continue;
      const color = rows.hot[i] ? colors.bad : colors.words[rows.word[i]];
      let x0 = (rows.at[i] - view[0]) * scale, x1 = (rows.end[i] - view[0]) * scale;
      if (x1 - x0 < least) x1 = x0 + least;
      x0 = Math.max(0, x0);
      x1 = Math.min(width, x1);
      for (let x = Math.floor(x0); x < x1; x++) {
        const part = Math.min(x + 1, x1) - Math.max(x, x0), k = 4 * x;
        sums[k] += part * color[0];
        sums[k + 1] += part * color[1];
        sums[k + 2] += part * color[2];
        sums[k + 3] += part;
      }
    }
    const [r, g, b] = colors.grid;
    for (let x = 0; x < width; x++) {
      const k = 4 * x, all = sums[k + 3], p = from + k, over = all > 1 ? 1 / all : 1, rest = all > 1 ? 0 : 1 - all;
      pixels[p] = sums[k] * over + rest * r;
      pixels[p + 1] = sums[k + 1] * over + rest * g;
      pixels[p + 2] = sums[k + 2] * over + rest * b;
      pixels[p + 3] = 255;
    }
  }

  const strip = document.createElement("canvas");
  function drawLanes() {
    const { context, ratio, width, height } = sized(screens.lanes);
    const key = `${version} ${view} ${width} ${height} ${colors.page} ${cells.length}`;
    if (key === drawn) return;
    drawn = key;
    const left = Math.round(gutter() * ratio), inner = width - left, row = rowHeight() * ratio, top = 22 * ratio;
    context.fillStyle = css(colors.page);
    context.fillRect(0, 0, width, height);
    drawTicks(context, left, inner, top, height, ratio);
    if (!lanes.length || inner < 2) return;
    if (strip.width !== inner || strip.height !== 2 * lanes.length) [strip.width, strip.height] = [inner, 2 * lanes.length];
    const drawing = strip.getContext("2d"), image = drawing.createImageData(inner, 2 * lanes.length);
    lanes.forEach((lane, i) => {
      paintRow(image.data, 8 * i * inner, inner, lane.bars, 0);
      paintRow(image.data, (8 * i + 4) * inner, inner, lane.calls, ratio);
    });
    drawing.putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    const gap = Math.max(1, Math.round(row * 0.1)), hasCalls = lanes.some((lane) => lane.calls.at.length);
    const upper = Math.round((row - gap) * (hasCalls ? 0.74 : 1));
    lanes.forEach((lane, i) => {
      const y = Math.round(top + i * row);
      context.drawImage(strip, 0, 2 * i, inner, 1, left, y, inner, upper);
      if (hasCalls) context.drawImage(strip, 0, 2 * i + 1, inner, 1, left, y + upper + 1, inner, Math.round(row - gap) - upper - 1);
      if (upper >= 12 * ratio) drawTexts(context, lane, left, y, inner, upper, ratio);
    });
    if (left) {
      context.fillStyle = css(colors.quiet);
      context.font = `${11 * ratio}px system-ui, sans-serif`;
      context.textAlign = "right";
      context.textBaseline = "middle";
      lanes.forEach((lane, i) => context.fillText(lane.rank, left - 5 * ratio, top + (i + 0.45) * row));
    }
  }

  function drawTexts(context, lane, left, y, inner, height, ratio) {
    const scale = inner / (view[1] - view[0]), rows = lane.bars;
    context.font = `${Math.min(11.5, height / ratio - 2) * ratio}px system-ui, sans-serif`;
    context.textAlign = "left";
    context.textBaseline = "middle";
    for (let i = Math.max(0, lastBefore(rows.at, view[0])), shown = 0; i < rows.at.length && rows.at[i] <= view[1] && shown < 60; i++) {
      const x0 = Math.max(0, (rows.at[i] - view[0]) * scale), x1 = Math.min(inner, (rows.end[i] - view[0]) * scale), room = x1 - x0 - 8 * ratio;
      if (room < 34 * ratio) continue;
      shown++;
      const color = rows.hot[i] ? colors.bad : colors.words[rows.word[i]], isLight = 0.3 * color[0] + 0.59 * color[1] + 0.11 * color[2] > 100;
      context.fillStyle = isLight ? "#0b0d0f" : "#fff";
      context.fillText(fitted(context, film.words[rows.word[i]][1], room), left + x0 + 4 * ratio, y + height / 2);
    }
  }
  const widths = new Map();
  function fitted(context, text, room) {
    const unit = `${context.font}|${text}`;
    if (!widths.has(unit)) {
      if (widths.size > 5000) widths.clear();
      widths.set(unit, context.measureText(text).width);
    }
    const width = widths.get(unit);
    return width <= room ? text : text.length * (room / width) < 3 ? "" : `${text.slice(0, Math.floor(text.length * (room / width)) - 1)}…`;
  }

  function drawTicks(context, left, inner, top, height, ratio) {
    const wanted = (view[1] - view[0]) / Math.max(2, inner / (110 * ratio));
    const power = 10 ** Math.floor(Math.log10(wanted)), step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= wanted);
    context.font = `${11 * ratio}px system-ui, sans-serif`;
    context.textAlign = "left";
    context.textBaseline = "middle";
    for (let time = Math.ceil(view[0] / step) * step; time <= view[1]; time += step) {
      const x = Math.round(left + (time - view[0]) / (view[1] - view[0]) * inner);
      context.fillStyle = css(colors.line);
      context.fillRect(x, 0, 1, height);
      context.fillStyle = css(colors.quiet);
      context.fillText(tickText(time, step), x + 4 * ratio, top / 2);
    }
  }
  function tickText(time, step) {
    if (step < 1000 || inMs()) return `${(time / 1000).toFixed(step < 1000 ? 1 : 0)} ms`;
    if (step < SECOND) return `${(time / SECOND).toFixed(Math.max(0, Math.ceil(-Math.log10(step / SECOND))))} s`;
    return time < 3600 * SECOND && film.end < 600 * SECOND ? `${Math.round(time / SECOND)} s` : clock(time).replace(/\.\d+$/, "");
  }

  function drawCursor() {
    const { context, ratio, width, height } = sized(screens.cursor), left = gutter() * ratio;
    context.clearRect(0, 0, width, height);
    const xOf = (time) => left + (time - view[0]) / (view[1] - view[0]) * (width - left);
    if (film.failure !== null && film.failure >= view[0] && film.failure <= view[1]) {
      context.fillStyle = css(colors.bad, 0.8);
      context.fillRect(Math.round(xOf(film.failure)), 0, 1.5 * ratio, height);
    }
    const x = xOf(cursor);
    if (x < left || x > width + 2) return;
    context.fillStyle = css(colors.ink);
    context.fillRect(Math.min(width - 2 * ratio, Math.round(x - ratio)), 0, 2 * ratio, height);
    context.beginPath();
    context.moveTo(x - 6 * ratio, 0);
    context.lineTo(x + 6 * ratio, 0);
    context.lineTo(x, 8 * ratio);
    context.fill();
  }

  let overviewDrawn = "";
  const backdrop = document.createElement("canvas");
  function drawOverview() {
    const { context, ratio, width, height } = sized(screens.overview);
    const key = `${version} ${width} ${colors.page}`;
    if (key !== overviewDrawn) {
      overviewDrawn = key;
      [backdrop.width, backdrop.height] = [width, height];
      const paint = backdrop.getContext("2d");
      paint.fillStyle = css(colors.grid);
      paint.fillRect(0, 0, width, height);
      const before = view;
      view = [0, Math.max(1, film.end)];
      const most = Math.min(lanes.length, 16), image = paint.createImageData(width, Math.max(1, most));
      for (let i = 0; i < most; i++) {
        paintRow(image.data, 4 * i * width, width, lanes[Math.floor(i * lanes.length / most)].bars, 0);
      }
      view = before;
      if (most) {
        [strip.width, strip.height] = [width, most];
        strip.getContext("2d").putImageData(image, 0, 0);
        paint.globalAlpha = 0.55;
        paint.imageSmoothingEnabled = false;
        paint.drawImage(strip, 0, 0, width, most, 0, 10 * ratio, width, height - 10 * ratio);
        paint.globalAlpha = 1;
      }
      for (const event of film.events) {
        paint.fillStyle = css(event.kind === "failure" ? colors.bad : colors.quiet);
        paint.fillRect(Math.round(event.at / Math.max(1, film.end) * (width - 2 * ratio)), 0, (event.kind === "failure" ? 3 : 1.5) * ratio, 8 * ratio);
      }
    }
    context.drawImage(backdrop, 0, 0);
    const xOf = (time) => time / Math.max(1, film.end) * width;
    context.fillStyle = css(colors.page, 0.55);
    context.fillRect(0, 0, xOf(view[0]), height);
    context.fillRect(xOf(view[1]), 0, width, height);
    context.strokeStyle = css(colors.quiet);
    context.lineWidth = ratio;
    context.strokeRect(xOf(view[0]) + 0.5, 0.5, Math.max(3, xOf(view[1]) - xOf(view[0]) - 1), height - 1);
    context.fillStyle = css(colors.ink);
    context.fillRect(Math.min(width - 3 * ratio, Math.round(xOf(cursor) - 1.5 * ratio)), 0, 3 * ratio, height);
  }

  // ---- curves --------------------------------------------------------------------------------------------------------

  let curves = [];
  function buildCurves() {
    byId("numbers").hidden = !film.series.length;
    if (curves.length !== film.series.length) {
      curves = film.series.map((series, i) => makeCurve(i));
      byId("curves").replaceChildren(...curves.map((curve) => curve.figure));
      byId("curves").classList.toggle("single", curves.length === 1);
    }
  }
  function makeCurve(index) {
    const figure = element("figure", null, "chart"), caption = element("figcaption"), canvas = element("canvas");
    const title = element("h3", film.series[index].title), value = element("span", null, "quiet");
    caption.append(title, value);
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${film.series[index].title} over time`);
    figure.append(caption, canvas);
    let key = "", still = document.createElement("canvas");
    const draw = () => {
      const { context, ratio, width, height } = sized(canvas), series = film.series[index];
      const now = `${version} ${width} ${height} ${colors.page}`;
      if (now !== key) {
        key = now;
        [still.width, still.height] = [width, height];
        drawCurve(still.getContext("2d"), series, width, height, ratio);
      }
      context.clearRect(0, 0, width, height);
      context.drawImage(still, 0, 0);
      context.fillStyle = css(colors.ink, 0.7);
      context.fillRect(Math.round(cursor / Math.max(1, film.end) * (width - 2 * ratio)), 0, 1.5 * ratio, height);
    };
    const tell = () => {
      const series = film.series[index], i = lastBefore(series.at, cursor);
      value.textContent = i < 0 || (series.values[i] === null && series.name !== "loss") ? "" : `${shortNumber(series.values[i])} at step ${series.step[i].toLocaleString("en")}`;
    };
    dragged(canvas, (x) => seek(x * film.end), 0);
    return { figure, draw, tell };
  }
  function drawCurve(context, series, width, height, ratio) {
    const values = series.values.filter((v) => v !== null);
    if (!values.length) return;
    let least = Infinity, most = -Infinity;
    for (const v of values) { least = Math.min(least, v); most = Math.max(most, v); }
    if (series.name !== "loss") least = Math.min(0, least);
    const room = most - least || Math.abs(most) || 1, inner = height - 22 * ratio;
    const y = (v) => 14 * ratio + (1 - (v - least) / room) * inner, x = (t) => t / Math.max(1, film.end) * width;
    context.fillStyle = css(colors.quiet);
    context.font = `${11 * ratio}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    for (const v of [most, least]) {
      context.fillStyle = css(colors.grid);
      context.fillRect(0, Math.round(y(v)), width, ratio);
    }
    context.strokeStyle = css(series.name === "loss" ? colors.ink : rgb("var(--rank-0)"));
    context.lineWidth = 1.6 * ratio;
    context.lineJoin = "round";
    context.beginPath();
    let open = false;
    series.values.forEach((v, i) => {
      if (v === null) { open = false; return; }
      if (open) context.lineTo(x(series.at[i]), y(v));
      else context.moveTo(x(series.at[i]), y(v));
      open = true;
    });
    context.stroke();
    if (values.length === 1) {  // a line of one step is a point
      const i = series.values.findIndex((v) => v !== null);
      context.fillStyle = context.strokeStyle;
      context.fillRect(Math.min(width - 6 * ratio, x(series.at[i]) - 3 * ratio), y(series.values[i]) - 3 * ratio, 6 * ratio, 6 * ratio);
    }
    if (series.name === "loss") series.values.forEach((v, i) => {
      if (v === null) { context.fillStyle = css(colors.bad); context.fillRect(x(series.at[i]), 0, 1.5 * ratio, height); }
    });
    context.fillStyle = css(colors.quiet);
    context.textAlign = "left";
    context.strokeStyle = css(colors.raised);
    context.lineWidth = 3 * ratio;
    for (const v of new Set([most, least])) {
      context.strokeText(shortNumber(v), 2 * ratio, y(v) - 7 * ratio);
      context.fillText(shortNumber(v), 2 * ratio, y(v) - 7 * ratio);
    }
  }

  // ---- time ----------------------------------------------------------------------------------------------------------

  function seek(time, keepsPlaying) {
    cursor = Math.min(Math.max(0, time), film.end);
    soughtAt = performance.now();
    follows = false;
    if (!keepsPlaying) setPlaying(false);
    keepInView();
  }
  function keepInView() {
    const width = view[1] - view[0];
    if (cursor < view[0] || cursor > view[1]) setView(cursor - width * (playing ? 0.15 : 0.5), width);
  }
  function setView(from, width) {
    width = Math.min(Math.max(20, width), Math.max(20, film.end));
    from = Math.min(Math.max(0, from), Math.max(0, film.end - width));
    view = [from, from + width];
  }
  function zoom(factor) {
    const width = view[1] - view[0], next = Math.min(Math.max(20, width * factor), Math.max(20, film.end));
    const share = Math.min(1, Math.max(0, (cursor - view[0]) / width));
    span = next >= film.end ? null : next;
    setView(cursor - share * next, next);
  }
  function jump(times, direction) {
    const index = direction > 0 ? lastBefore(times, cursor + 0.5) + 1 : lastBefore(times, cursor - 1);
    if (index >= 0 && index < times.length) seek(times[index]);
  }
  function setPlaying(wanted) {
    playing = wanted;
    if (playing) {
      follows = false;
      if (cursor >= film.end) cursor = 0;
      keepInView();
    }
    byId("play").textContent = playing ? "Pause" : "Play";
    byId("play").setAttribute("aria-pressed", playing);
  }
  function setFollowing() {
    setPlaying(false);
    follows = film.is_live;
  }

  function frame(now) {
    const passed = Math.min(100, now - lastFrame), begun = performance.now();
    lastFrame = now;
    if (film) {
      if (playing) {
        const chosen = byId("speed").value, speed = chosen === "fit" ? film.end / (20 * SECOND) : Number(chosen);
        cursor = Math.min(film.end, cursor + passed * 1000 * speed);
        if (cursor >= film.end && !film.is_live) setPlaying(false);
        keepInView();
      }
      const all = span === null && !follows;
      if (follows) {
        cursor = film.end;
        const width = Math.min(film.end, span ?? 30 * SECOND), target = film.end - width, from = view[1] > film.end * 1.5 ? target : view[0];
        const moved = from + (target - from) * Math.min(1, passed / 250);
        setView(Math.abs(target - moved) < width / 2000 ? target : moved, width);
      } else if (all && (view[0] !== 0 || view[1] !== Math.max(20, film.end))) setView(0, film.end);
      byId("follow").setAttribute("aria-pressed", follows);
      drawLanes();
      drawCursor();
      drawOverview();
      for (const curve of curves) curve.draw();
      tellRanks(now);
      spent = performance.now() - begun;
    }
    requestAnimationFrame(frame);
  }

  function dragged(canvas, move, inset) {
    const at = (event) => {
      const box = canvas.getBoundingClientRect(), left = inset ? inset() : 0;
      move(Math.min(1, Math.max(0, (event.clientX - box.left - left) / Math.max(1, box.width - left))));
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (!film || event.button) return;
      canvas.setPointerCapture(event.pointerId);
      at(event);
    });
    canvas.addEventListener("pointermove", (event) => { if (film && canvas.hasPointerCapture(event.pointerId)) at(event); });
  }
  dragged(screens.overview, (x) => seek(x * film.end), 0);
  dragged(screens.cursor, (x) => seek(view[0] + x * (view[1] - view[0])), gutter);
  screens.cursor.addEventListener("wheel", (event) => {
    if (!film || !(event.ctrlKey || event.metaKey || event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))) return;
    event.preventDefault();
    if (event.ctrlKey || event.metaKey) return zoom(event.deltaY > 0 ? 1.25 : 0.8);
    const width = view[1] - view[0];
    follows = false;
    span = width >= film.end ? null : width;
    setView(view[0] + (event.deltaX || event.deltaY) / 800 * width, width);
  }, { passive: false });

  const ACTIONS = {
    play: () => setPlaying(!playing),
    "step-back": () => jump(stepAt, -1),
    "step-on": () => jump(stepAt, 1),
    "event-back": () => jump(eventAt, -1),
    "event-on": () => jump(eventAt, 1),
    failure: () => film.failure !== null && seek(film.failure),
    follow: () => follows ? seek(cursor) : setFollowing(),
    "zoom-in": () => zoom(0.5),
    "zoom-out": () => zoom(2),
    "zoom-all": () => { span = null; follows = false; },
  };
  for (const [id, act] of Object.entries(ACTIONS)) byId(id).addEventListener("click", () => film && act());
  const KEYS = { " ": "play", ArrowLeft: "step-back", ArrowRight: "step-on", ",": "event-back", ".": "event-on", f: "failure",
                 l: "follow", "+": "zoom-in", "=": "zoom-in", "-": "zoom-out", "0": "zoom-all" };
  addEventListener("keydown", (event) => {
    if (!film || event.ctrlKey || event.metaKey || event.altKey || ["SELECT", "INPUT"].includes(event.target.tagName)) return;
    if (event.key === " " && event.target.tagName === "BUTTON") return;
    let name = KEYS[event.key];
    if (!stepAt.length && name?.startsWith("step")) name = undefined;
    if (event.key === "Home") seek(0);
    else if (event.key === "End") seek(film.end);
    else if (name) ACTIONS[name]();
    else if (event.key.startsWith("Arrow") && ["ArrowLeft", "ArrowRight"].includes(event.key)) {
      seek(cursor + (event.key === "ArrowLeft" ? -1 : 1) * (view[1] - view[0]) / 50);
    } else return;
    event.preventDefault();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    known.clear();
    if (film) readColors();
  });

  // ---- the connection ------------------------------------------------------------------------------------------------

  function connect() {
    const socket = new WebSocket(`ws://${location.host}${location.pathname}film`);
    socket.addEventListener("message", (event) => {
      const message = JSON.parse(event.data);
      byId("connection").hidden = true;
      setFilm(message.film ?? withChanges(film, message.changes));
    });
    socket.addEventListener("close", () => {
      byId("connection").hidden = false;
      byId("connection").textContent = film
        ? "Not connected: frog watch has ended. The page keeps what it has received."
        : "Waiting for frog watch.";
      setTimeout(connect, 3000);
    });
  }

  // For tests and measurements: the state, without a way to change the film.
  window.frogWatch = { state: () => ({ version, cursor, view, follows, playing, lanes: lanes.length, end: film?.end ?? 0, spent }), film: () => film,
                       seek: (time) => seek(time), settle: () => { told = ""; toldAt = soughtAt = -1000; tellRanks(performance.now()); } };
  if (data.film) setFilm(data.film);
  else {
    byId("status").textContent = "waiting";
    byId("status").className = "status status-waiting";
    connect();
  }
  requestAnimationFrame(frame);
})();
