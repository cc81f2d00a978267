// Numbers over the steps: read from the data, written as text, and drawn.

const NAMES_OF_LOOKS = ["--one", "--two"];

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function asNumber(value) {
  return value === null || value === undefined ? NaN : Number(String(value).replace("inf", "Infinity"));
}

// The place of the part of a run that holds a step: the last that begins at or before it.
function partAt(run, step) {
  let low = 0;
  let high = run.steps.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (run.steps[middle] <= step) low = middle;
    else high = middle - 1;
  }
  return low;
}

function lastStep(run) {
  return (run.last_steps ?? run.steps).at(-1);
}

// A number of the last step, in which it is known to four digits and not as an extreme of several.
function lastNumber(last, name) {
  if (name === "zeros") return asNumber(last.zeros) / asNumber(last.numel);
  if (name === "nonfinite") return asNumber(last.numel) - asNumber(last.num_finite);
  return asNumber(last[name]);
}

function lowHighAt(packed, part) {
  if (packed === undefined) return [NaN, NaN];
  if (packed === null || typeof packed !== "object") return [asNumber(packed), asNumber(packed)];
  if (Array.isArray(packed)) return [asNumber(packed[part]), asNumber(packed[part])];
  return [asNumber(packed.low[part]), asNumber(packed.high[part])];
}

// All parts of a number: [low, high], null where there is none, so that a line has a gap there.
function lowHigh(packed, length) {
  const low = new Array(length);
  const high = new Array(length);
  for (let part = 0; part < length; part++) {
    const [one, two] = lowHighAt(packed, part);
    low[part] = Number.isFinite(one) ? one : null;
    high[part] = Number.isFinite(two) ? two : null;
  }
  return [low, high];
}

function text(value) {
  if (Number.isNaN(value)) return "";
  if (!Number.isFinite(value)) return value > 0 ? "Inf" : "-Inf";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e4) {
    return value.toExponential(3).replace(/\.?0*e/, "e").replace("e+", "e");
  }
  return String(Number(value.toPrecision(4)));
}

function grouped(value) {
  return Math.round(value).toLocaleString("en-US");
}

function percentText(value) {
  if (!(value > 0)) return value === 0 ? "0" : "";
  return value >= 0.1 ? `${(100 * value).toFixed(0)}%` : `${Number((100 * value).toPrecision(2))}%`;
}

function cellText(name, value) {
  if (Number.isNaN(value)) return "";
  if (name === "zeros") return percentText(value);
  return name === "nonfinite" ? grouped(value) : text(value);
}

// The place of the number that is nearest to another, in ascending ones.
function nearest(numbers, wanted) {
  const at = partAt({ steps: numbers }, wanted);
  return at + 1 < numbers.length && numbers[at + 1] - wanted < wanted - numbers[at] ? at + 1 : at;
}

// One chart of a number of one or two runs. `lines`: label, run, packed, and packed counts of
// elements that were not finite.
function drawChart(host, lines, { isLog = false, height = 220, onStep, step }) {
  const tables = [];
  const series = [{ label: "step", value: (u, v) => (v === null || v === undefined ? "" : grouped(v)) }];
  const bands = [];
  lines.forEach((line, number) => {
    const [low, high] = lowHigh(line.packed, line.run.steps.length);
    const isExact = line.run.last_steps === undefined;
    const look = color(NAMES_OF_LOOKS[number % 2]);
    const drawn = {
      stroke: look,
      width: 1.5,
      spanGaps: false,
      points: { show: line.run.steps.length < 40, size: 4 },
      value: (u, v) => (v === null || v === undefined ? "" : text(v)),
    };
    tables.push(isExact ? [line.run.steps, low] : [line.run.steps, high, low]);
    series.push({ ...drawn, label: isExact ? line.label : `${line.label}, largest` });
    if (!isExact) {
      series.push({ ...drawn, label: `${line.label}, smallest` });
      bands.push({ series: [series.length - 2, series.length - 1], fill: `${look}44` });
    }
  });
  const data = tables.length > 1 ? uPlot.join(tables) : tables[0];
  const axis = { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 } };
  const smallest = Math.min(
    ...data.slice(1).flat().filter((one) => one !== null && one !== 0).map(Math.abs), 1);
  // Nothing is pointed at: the legend says the numbers of the step that is chosen.
  const rest = (u) => {
    if (u.legend.idx === null || u.legend.idx === undefined) u.setLegend({ idx: nearest(data[0], step()) });
  };
  const chart = new uPlot(
    {
      width: Math.max(host.clientWidth, 220),
      height,
      scales: { x: { time: false }, y: isLog ? { distr: 4, asinh: smallest } : {} },
      axes: [
        { ...axis, values: (u, all) => all.map(grouped) },
        { ...axis, size: 64, values: (u, all) => all.map((one) => (one === null ? "" : text(one))) },
      ],
      series,
      bands,
      legend: { live: true },
      cursor: { drag: { x: true, y: false, uni: 20 }, points: { size: 6 } },
      hooks: { draw: [(u) => drawMarks(u, lines, step())], ready: [rest], setLegend: [rest] },
    },
    data,
    host,
  );
  chart.over.addEventListener("click", (event) => {
    const found = chart.posToVal(event.offsetX, "x");
    if (Number.isFinite(found)) onStep(Math.round(found));
  });
  chart.showStep = () => {
    chart.redraw(false);
    if (chart.cursor.idx === null || chart.cursor.idx === undefined) chart.setLegend({ idx: nearest(data[0], step()) });
  };
  chart.root.setAttribute("role", "img");
  chart.root.setAttribute("aria-label", `${lines.map((one) => one.label).join(", ")} over the steps`);
  return chart;
}

// The step that is chosen, and marks where elements were not finite.
function drawMarks(chart, lines, step) {
  const { ctx, bbox } = chart;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.strokeStyle = color("--bad");
  ctx.lineWidth = 2 * devicePixelRatio;
  for (const line of lines) {
    for (let part = 0; part < line.run.steps.length && line.bad !== undefined; part++) {
      if (!(lowHighAt(line.bad, part)[1] > 0)) continue;
      const x = chart.valToPos(line.run.steps[part], "x", true);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top + bbox.height);
      ctx.lineTo(x, bbox.top + bbox.height - 9 * devicePixelRatio);
      ctx.stroke();
    }
  }
  const x = chart.valToPos(step, "x", true);
  ctx.strokeStyle = color("--ink");
  ctx.setLineDash([4, 3]);
  ctx.lineWidth = devicePixelRatio;
  ctx.beginPath();
  ctx.moveTo(x, bbox.top);
  ctx.lineTo(x, bbox.top + bbox.height);
  ctx.stroke();
  ctx.restore();
}
