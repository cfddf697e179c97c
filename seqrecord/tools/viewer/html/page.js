"use strict";
// Texts of the dataset reach the document as text nodes only: never as HTML.
(() => {
const page = JSON.parse(document.getElementById("data").textContent);
const get = (id) => document.getElementById(id);
const rows = page.episodes;
const STRIP = { height: 48, tiles: 6 };
const ROWS_AT_ONCE = 200;
const MAX_CHARTS = 24;
const TASKS = ["task", "tasks", "language_instruction", "instruction"];
const state = { order: [], shown: 0, marked: 0, sort: null, descending: false, open: null, frame: 0, charts: [] };

// Text

function printable(text) {
  return String(text).replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cs}\u2028\u2029]/gu, (c) =>
    c === "\n" || c === "\u200d" ? c : `\\u{${c.codePointAt(0).toString(16)}}`);
}

function element(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name in made && typeof value !== "string") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.map((c) => (c instanceof Node ? c : printable(c))));
  return made;
}

const isolated = (text) => element("bdi", {}, text);

function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return value.toLocaleString("en");
  return String(Number(value.toPrecision(digits)));
}

// Rows

const taskOf = (row) => row.metadata.find(([name]) => TASKS.includes(name))?.[1] ?? row.texts?.task?.runs[0]?.[2] ?? "";

const sourceOf = (row) => page.sources[row.source ?? 0];

function textOf(row) {
  const captions = Object.values(row.texts ?? {}).flatMap((one) => one.runs.map((run) => run[2]));
  return [row.key, sourceOf(row).name, row.split, row.error, ...row.metadata.flat(), ...captions].join("\n").toLowerCase();
}

const missingOf = (row) => Object.values(row.missing ?? {}).reduce((sum, n) => sum + n, 0) || null;
const secondsOf = (row) => (row.fps ? row.frames / row.fps : null);
const measure = (name) => (row) => row.numbers?.[name] ?? null;

const COLUMNS = [
  { label: "episode", title: "Key of the episode", value: (row) => row.key },
  { label: "task", title: "Task, from metadata or captions", value: taskOf, text: true },
  { label: "split", value: (row) => row.split ?? "", text: true },
  { label: "frames", value: (row) => row.frames },
  { label: "seconds", title: "Frames by the frame rate", value: secondsOf },
  { label: "missing", title: "Frames that lack a feature, counted by feature", value: missingOf },
  { label: "fps measured", title: "Mean rate of the timestamps", value: measure("rate") },
  { label: "longest step", title: "Longest time from a frame to the next, in frame periods",
    value: (row) => (row.numbers?.step ? row.numbers.step * (row.fps ?? row.numbers.rate) : null) },
  { label: "outlier", title: "Greatest distance of a value of state, action or pose from its mean, in standard deviations", value: measure("outlier") },
  { label: "unlike task", title: "Distance of the pictures to those of its task, divided by the distance to other tasks; above 1: nearer to others", value: measure("unlike") },
  { label: "still %", title: "Successive pictures without a change; of the stillest camera", value: measure("still") },
  { label: "light %", title: "Mean brightness of the pictures; of the darkest camera", value: measure("light"), ascends: true },
  ...page.quality.map((name) => ({ label: name, title: `${name}, from the quality table`, value: (row) => row.quality?.[name] ?? null })),
].filter((column, i) => i === 0 || rows.some((row) => column.value(row)));

const isEmpty = (value) => value === null || value === "";

function filtered() {
  const words = get("search").value.toLowerCase().split(/\s+/).filter(Boolean), split = get("split").value;
  const order = [...rows.keys()].filter((i) => (!split || (rows[i].split ?? "") === split.slice(1))
    && words.every((word) => (rows[i].searched ??= textOf(rows[i])).includes(word)));
  if (!state.sort) return order;
  const values = rows.map(state.sort.value);
  return order.sort((a, b) => {
    const [x, y] = [values[a], values[b]];
    if (isEmpty(x) || isEmpty(y)) return isEmpty(x) - isEmpty(y);  // always last
    const sign = typeof x === "number" ? x - y : x.localeCompare(y, "en", { numeric: true });
    return state.descending ? -sign : sign;
  });
}

// Pictures

const images = new Map();

function withImage(src, draw) {
  const image = images.get(src) ?? element("img", { src });
  images.set(src, image);
  if (images.size > 400) images.delete(images.keys().next().value);
  if (image.complete && image.naturalWidth) draw(image);
  else image.addEventListener("load", () => draw(image), { once: true });
}

function drawTile(context, image, picture, tile, x, y, width, height) {
  const [h, w] = picture.size;
  context.drawImage(image, (tile % picture.columns) * w, Math.floor(tile / picture.columns) * h, w, h, x, y, width, height);
}

function strip(row) {
  const picture = Object.values(row.pictures ?? {})[0];
  const canvas = element("canvas", { role: "img", "aria-label": `pictures of ${row.key}` });
  if (!picture) return element("span", { class: "dim" }, row.error ? "cannot be read" : "");
  const count = Math.min(STRIP.tiles, picture.frames.length);
  const width = Math.round((STRIP.height * picture.size[1]) / picture.size[0]);
  canvas.width = count * (width + 2);
  canvas.height = STRIP.height;
  watcher.observe(canvas);
  canvas.draw = () => withImage(picture.src, (image) => {
    for (let i = 0; i < count; i++) {
      const tile = count > 1 ? Math.round((i * (picture.frames.length - 1)) / (count - 1)) : 0;
      drawTile(canvas.getContext("2d"), image, picture, tile, i * (width + 2), 0, width, STRIP.height);
    }
  });
  return canvas;
}

const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    entry.target.draw();
    watcher.unobserve(entry.target);
  }
}, { rootMargin: "300px" });

// The list

function head() {
  const cells = COLUMNS.map((column) => {
    const isSorted = state.sort === column;
    const arrow = isSorted ? (state.descending ? " ▼" : " ▲") : "";
    const button = element("button", { type: "button", title: column.title ?? "" }, column.label + arrow);
    button.addEventListener("click", () => {
      state.descending = isSorted ? !state.descending : !column.ascends && typeof rows.map(column.value).find((value) => !isEmpty(value)) === "number";
      state.sort = column;
      list();
    });
    const isNumber = column !== COLUMNS[0] && !column.text;
    const sort = isSorted ? (state.descending ? "descending" : "ascending") : "none";
    return element("th", { class: isNumber ? "number" : "", "aria-sort": sort }, button);
  });
  get("list").tHead.replaceChildren(element("tr", {}, element("th", {}, "pictures"), ...cells, element("th", {}, "metadata")));
}

function line(place) {
  const row = rows[state.order[place]];
  const cells = COLUMNS.map((column, i) => {
    const value = column.value(row);
    if (i === 0) {
      const link = element("a", { href: linkTo(row, 0) }, isolated(row.key));
      const source = sourceOf(row).name;
      const note = row.error ? element("div", { class: "warning" }, "cannot be read") : "";
      return element("td", { class: "key" }, link, source ? element("div", { class: "dim" }, isolated(source)) : "", note);
    }
    if (column.text) return element("td", { class: "text" }, ...(value ? [element("div", {}, isolated(value))] : []));
    return element("td", { class: "number", "data-label": column.label }, number(value, 3));
  });
  const metadata = row.metadata.filter(([name]) => !TASKS.includes(name)).map(([name, value]) => `${name}: ${value}`).join(", ");
  const made = element("tr", { "aria-selected": String(place === state.marked) }, element("td", {}, strip(row)), ...cells,
    element("td", { class: "text" }, ...(metadata ? [element("div", {}, isolated(metadata))] : [])));
  made.addEventListener("click", (event) => {
    if (!event.target.closest("a")) location.hash = linkTo(row, 0);
  });
  return made;
}

function list() {
  state.order = filtered();
  state.marked = 0;
  state.shown = 0;
  get("list").tBodies[0].replaceChildren();
  head();
  more();
  get("count").textContent = `${number(state.order.length)} of ${number(rows.length)} episodes`;
}

function more() {
  const made = state.order.slice(state.shown, state.shown + ROWS_AT_ONCE).map((_, i) => line(state.shown + i));
  get("list").tBodies[0].append(...made);
  state.shown += made.length;
  get("more").hidden = state.shown === state.order.length;
}

function mark(place) {
  if (!state.order.length) return;
  state.marked = Math.max(0, Math.min(place, state.order.length - 1));
  while (state.shown <= state.marked) more();
  [...get("list").tBodies[0].rows].forEach((tr, i) => tr.setAttribute("aria-selected", String(i === state.marked)));
  get("list").tBodies[0].rows[state.marked].scrollIntoView({ block: "nearest" });
}

// One episode

function linkTo(row, frame) {
  const source = sourceOf(row).name;
  return `#episode=${encodeURIComponent(row.key)}&frame=${frame}${source ? `&source=${encodeURIComponent(source)}` : ""}`;
}

function decoded(curve, channel) {
  const bytes = Uint8Array.from(atob(curve.codes), (c) => c.charCodeAt(0));
  const codes = curve.wide ? new Uint16Array(bytes.buffer) : bytes;
  const [low, high] = [curve.low[channel], curve.high[channel]];
  const most = curve.wide ? 65534 : 254;
  return Array.from(codes.subarray(channel * curve.points, (channel + 1) * curve.points), (code) =>
    code && low !== null ? low + ((code - 1) / most) * (high - low) : null);
}

function framesOf({ step, points }) {
  return Array.from({ length: points }, (_, i) => (step === 1 ? i : (i >> 1) * step + (i % 2 ? step / 2 : 0)));
}

// Groups of curves that share charts: a state and an action with the same number of channels.
function groupsOf(row) {
  const features = sourceOf(row).curves.filter((one) => row.curves?.[one.name]);
  const groups = [], used = new Set();
  for (const feature of features) {
    if (used.has(feature)) continue;
    const kind = { state: "action", action: "state" }[feature.kind];
    const partner = kind && features.find((one) => !used.has(one) && one.channels === feature.channels && one.kind === kind);
    const group = !partner ? [feature] : kind === "action" ? [feature, partner] : [partner, feature];
    group.forEach((one) => used.add(one));
    groups.push(group);
  }
  return groups;
}

function unitOf(feature, channel) {
  const units = feature.unit.split(", ");
  return units.length === feature.channels ? units[channel] : feature.unit;
}

function charts(row) {
  state.charts.forEach((chart) => chart.destroy());
  state.charts = [];
  const made = [], constants = [];
  for (const group of groupsOf(row)) {
    for (let channel = 0; channel < group[0].channels; channel++) {
      const curves = group.map((one) => row.curves[one.name]);
      const label = (one) => (one.channels > 1 ? `${one.name}[${one.names[channel] ?? channel}]` : one.name);
      const isConstant = curves.every((one) => one.low[channel] === one.high[channel] || one.low[channel] === null);
      if (isConstant) {
        group.forEach((one, i) => constants.push(`${label(one)} ${curves[i].low[channel] === null ? "no number" : number(curves[i].low[channel])} ${unitOf(one, channel)}`.trim()));
      } else made.push({ group, curves, channel, label });
    }
  }
  const boxes = made.slice(0, MAX_CHARTS).map((one) => chart(row, one));
  if (made.length > MAX_CHARTS) {
    const button = element("button", { type: "button" }, `Show ${made.length - MAX_CHARTS} more charts`);
    button.addEventListener("click", () => button.replaceWith(...made.slice(MAX_CHARTS).map((one) => chart(row, one))));
    boxes.push(button);
  }
  if (constants.length) boxes.push(element("p", { class: "constants" }, element("b", {}, "Constant: "), isolated(constants.join("; "))));
  get("charts").replaceChildren(...boxes);
}

function chart(row, { group, curves, channel, label }) {
  const title = element("h3", {}, ...group.flatMap((one, i) => [
    ...(group.length > 1 ? [element("span", { class: i ? "line second" : "line" })] : []), isolated(label(one)), " ",
    element("span", { class: "dim" }, unitOf(one, channel))]));
  const box = element("div", { class: "chart" }, title);
  const css = getComputedStyle(document.documentElement);
  const colour = (name) => css.getPropertyValue(name).trim();
  const frames = framesOf(curves[0]);
  const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  const options = {
    width: 420, height: 118, legend: { show: false }, padding: [6, 8, 0, 0],
    cursor: { drag: { x: false, y: false }, points: { show: false }, y: false },
    scales: { x: { time: false, range: () => [0, Math.max(1, row.frames - 1)] } },
    axes: [{ ...axis, size: 20, incrs: [1, 2, 5].flatMap((n) => [n, 10 * n, 100 * n, 1e3 * n, 1e4 * n, 1e5 * n]).sort((a, b) => a - b) }, { ...axis, size: 52, values: (_, ticks) => ticks.map((tick) => number(tick, 3)) }],
    series: [{}, ...group.map((_, i) => ({
      stroke: colour(i ? "--second" : "--accent"), width: 1.5, dash: i ? [5, 3] : [], points: { show: frames.length < 3 },
    }))],
    hooks: { draw: [(plot) => {
      const { ctx, bbox } = plot;
      const x = plot.valToPos(state.frame, "x", true);
      ctx.fillStyle = colour("--front");
      ctx.fillRect(Math.round(x) - 1, bbox.top, 2, bbox.height);
    }] },
  };
  const values = curves.map((one) => decoded(one, channel));
  requestAnimationFrame(() => {
    if (!box.isConnected) return;
    const plot = new uPlot({ ...options, width: box.clientWidth }, [frames, ...values], box);
    plot.over.addEventListener("click", () => seek(plot.posToVal(plot.cursor.left, "x")));
    state.charts.push(plot);
  });
  return box;
}

function pictures(row) {
  const boxes = sourceOf(row).pictures.filter((one) => row.pictures?.[one.name]).map((feature) => {
    const picture = row.pictures[feature.name];
    const [h, w] = picture.size;
    const canvas = element("canvas", { width: w, height: h, role: "img", "aria-label": feature.name });
    const caption = element("figcaption");
    const address = row.videos?.[feature.name];
    const video = address && element("video", { src: address, controls: true, muted: true, playsInline: true, preload: "metadata" });
    video?.addEventListener("timeupdate", () => video.paused || seek(video.currentTime * (row.fps ?? 30)));
    const box = element("figure", {}, ...(video ? [video] : []), canvas, caption, ...(feature.legend ? [legend(feature.legend)] : []));
    canvas.hidden = Boolean(video);
    box.show = () => {
      if (video?.paused) video.currentTime = (state.frame + 0.5) / (row.fps ?? 30);
      const gap = (row.gaps?.[feature.name] ?? []).find(([start, stop]) => start <= state.frame && state.frame < stop);
      let tile = 0;
      picture.frames.forEach((frame, i) => {
        if (Math.abs(frame - state.frame) < Math.abs(picture.frames[tile] - state.frame)) tile = i;
      });
      caption.replaceChildren(element("b", {}, isolated(feature.name)), " ", gap
        ? element("span", { class: "missing" }, `missing at frame ${state.frame}`) : `frame ${number(picture.frames[tile])}`);
      withImage(picture.src, (image) => {
        const context = canvas.getContext("2d");
        context.globalAlpha = 1;
        context.clearRect(0, 0, w, h);
        context.globalAlpha = gap ? 0.15 : 1;
        drawTile(context, image, picture, tile, 0, 0, w, h);
      });
    };
    return box;
  });
  get("pictures").replaceChildren(...boxes);
}

function legend(one) {
  const labels = element("div", {}, ...one.labels.map((text) => element("span", {}, text)));
  return element("div", { class: one.wheel ? "legend wheel" : "legend" }, element("img", { src: one.src, alt: "" }), labels);
}

function tracks(row) {
  const span = (made, start, stop) => {
    made.style.left = `${(100 * start) / row.frames}%`;
    made.style.width = `${(100 * (stop - start)) / row.frames}%`;
    return made;
  };
  const track = (name, ...parts) => element("div", { class: "track" }, element("span", {}, isolated(name)),
    element("div", { class: "bar" }, ...parts, element("div", { class: "now" })));
  const made = [];
  for (const [name, runs] of Object.entries(row.gaps ?? {})) {
    made.push(track(`${name}: ${number(row.missing[name])} missing`, ...runs.map(([start, stop]) =>
      span(element("div", { class: "gap", title: `missing from frame ${start} to ${stop - 1}` }), start, stop))));
  }
  for (const [name, { runs, changes }] of Object.entries(row.texts ?? {})) {
    if (!changes) continue;
    const rest = changes > runs.length ? ` (the first ${runs.length} of ${number(changes)})` : "";
    made.push(track(name + rest, ...runs.map(([start, stop, text]) => {
      const button = span(element("button", { type: "button", title: `frames ${start} to ${stop - 1}: ${printable(text)}` }, isolated(text)), start, stop);
      button.addEventListener("click", () => seek(start));
      return button;
    })));
  }
  get("tracks").replaceChildren(...made);
}

function facts(row) {
  const pairs = [["frames", number(row.frames)], ["frames per second", row.fps ? number(row.fps) : "unknown"], ["split", row.split ?? ""]];
  for (const column of COLUMNS.slice(5)) pairs.push([column.label, number(column.value(row), 4)]);
  pairs.push(...row.metadata);
  const quoted = `'${row.key.replaceAll("'", "'\\''")}'`;
  if (printable(quoted) === quoted) pairs.push(["playback", `seqrecord view PATH ${quoted} --rerun`]);
  get("facts").replaceChildren(...pairs.filter(([, value]) => value !== "").map(([name, value]) =>
    element("div", {}, element("dt", {}, isolated(name)), element("dd", {}, isolated(value)))));
}

function open(row, frame) {
  state.frame = Math.max(0, Math.min(Math.round(frame) || 0, row.frames - 1));
  if (state.open !== row) {
    state.open = row;
    const source = sourceOf(row).name;
    get("key").replaceChildren(isolated(row.key), ...(source ? [" ", element("span", { class: "dim" }, isolated(source))] : []));
    get("slider").max = row.frames - 1;
    pictures(row);
    tracks(row);
    charts(row);
    facts(row);
  }
  showFrame();
  return row.error ? `This episode cannot be read: ${row.error}`
    : row.pictures || row.curves ? "" : "This page has no pictures and curves of this episode, to fit its size.";
}

function showFrame() {
  const row = state.open;
  get("slider").value = state.frame;
  const time = row.fps ? ` · ${(state.frame / row.fps).toFixed(2)} s` : "";
  get("place").textContent = `frame ${number(state.frame)} of ${number(row.frames)}${time}`;
  for (const box of get("pictures").children) box.show();
  for (const now of document.querySelectorAll(".now")) now.style.left = `${(100 * state.frame) / row.frames}%`;
  for (const plot of state.charts) plot.redraw(false);
}

function seek(frame) {
  const row = state.open;
  state.frame = Math.max(0, Math.min(Math.round(frame), row.frames - 1));
  history.replaceState(null, "", linkTo(row, state.frame));
  showFrame();
}

function nextPicture(direction) {
  const frames = [...new Set(Object.values(state.open.pictures ?? {}).flatMap((one) => one.frames))].sort((a, b) => a - b);
  const beyond = frames.filter((frame) => (frame - state.frame) * direction > 0);
  return beyond.length ? beyond[direction > 0 ? 0 : beyond.length - 1] : state.frame + direction;
}

function step(direction) {
  const place = state.order.indexOf(rows.indexOf(state.open)) + direction;
  if (!(place in state.order)) return;
  state.marked = place;
  location.hash = linkTo(rows[state.order[place]], 0);
}

// Addresses

function route() {
  const hash = location.hash.slice(1);
  const fields = Object.fromEntries(hash.split("&").map((part) => {
    const [name, value = ""] = part.split(/=(.*)/s);
    try { return [name, decodeURIComponent(value)]; } catch { return [name, value]; }
  }));
  let shown = hash === "episodes" ? "episodes" : "overview", problem = "";
  if ("episode" in fields) {
    const row = rows.find((one) => one.key === fields.episode
      && (!fields.source || sourceOf(one).name === fields.source));
    shown = row ? "episode" : "episodes";
    get(`at-${shown}`).hidden = false;
    problem = row ? open(row, Number(fields.frame)) : `This page has no episode ${fields.episode}.`;
  }
  get("problem").textContent = printable(problem);
  get("problem").hidden = !problem;
  for (const name of ["overview", "episodes", "episode"]) {
    get(`at-${name}`).hidden = name !== shown;
    if (name === shown) get(`to-${name}`).setAttribute("aria-current", "page");
    else get(`to-${name}`).removeAttribute("aria-current");
  }
  get("to-episode").hidden = !state.open;
  if (state.open) get("to-episode").href = linkTo(state.open, state.frame);
  if (shown === "episodes") mark(state.marked);
  else window.scrollTo(0, 0);
}

const go = (hash) => () => { location.hash = hash; };
const actions = {
  "/": () => { location.hash = "#episodes"; setTimeout(() => get("search").focus()); },
  "?": () => get("help").showModal(),
  o: go("#overview"), e: go("#episodes"), Escape: go("#episodes"),
};

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.matches("input[type=search], select");
  if (get("help").open || event.ctrlKey || event.metaKey || event.altKey) return;
  if (isTyping) {
    if (event.key === "Escape" || event.key === "Enter") event.target.blur();
    return;
  }
  const inList = !get("at-episodes").hidden, inEpisode = !get("at-episode").hidden;
  const keys = { ...actions };
  if (inList) {
    keys.j = keys.ArrowDown = () => mark(state.marked + 1);
    keys.k = keys.ArrowUp = () => mark(state.marked - 1);
    if (state.order.length && !event.target.matches("a, button")) keys.Enter = go(linkTo(rows[state.order[state.marked]], 0));
  }
  if (inEpisode) {
    keys.j = () => step(1);
    keys.k = () => step(-1);
    keys.ArrowRight = () => seek(event.shiftKey ? state.frame + 1 : nextPicture(1));
    keys.ArrowLeft = () => seek(event.shiftKey ? state.frame - 1 : nextPicture(-1));
  }
  if (!Object.hasOwn(keys, event.key)) return;
  event.preventDefault();
  keys[event.key]();
});

get("filters").addEventListener("submit", (event) => event.preventDefault());
get("search").addEventListener("input", list);
get("split").addEventListener("change", list);
get("more").addEventListener("click", more);
get("slider").addEventListener("input", () => seek(Number(get("slider").value)));
get("previous").addEventListener("click", () => step(-1));
get("next").addEventListener("click", () => step(1));
get("help-button").addEventListener("click", actions["?"]);
get("theme").addEventListener("click", () => {
  const { dataset } = document.documentElement;
  const theme = dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  dataset.theme = theme === "dark" ? "light" : "dark";
  if (state.open) charts(state.open);
});
window.addEventListener("hashchange", route);
window.addEventListener("resize", () => state.charts.forEach((plot) => plot.setSize({ width: plot.root.parentElement.clientWidth, height: plot.height })));
new ResizeObserver(([entry]) => document.documentElement.style.setProperty("--header", `${entry.target.offsetHeight}px`)).observe(document.querySelector("header"));

const splits = [...new Set(rows.map((row) => row.split ?? ""))].sort();
if (splits.length > 1) {
  get("split").hidden = false;
  get("split").append(element("option", { value: "" }, "all splits"), ...splits.map((name) => element("option", { value: `=${name}` }, name || "no split")));
}
list();
route();
})();
