// Feature maps, histograms and magnitudes over depth as pictures.

const ANCHORS = {
  viridis: "440154 482878 3e4989 31688e 26828e 1f9e89 35b779 6ece58 b5de2b fde725",
  cividis: "00224e 123570 3b496c 575d6d 707173 8a8678 a59c74 c3b369 e1cc55 fee838",
  grey: "000000 ffffff",
  RdBu: "053061 2166ac 4393c3 92c5de d1e5f0 f7f7f7 fddbc7 f4a582 d6604d b2182b 67001f",
  PuOr: "2d004b 542788 8073ac b2abd2 d8daeb f7f7f7 fee0b6 fdb863 e08214 b35806 7f3b08",
};
const NOT_FINITE = [255, 0, 255];
const SVG = "http://www.w3.org/2000/svg";

function colorTable(name) {
  const anchors = ANCHORS[name].split(" ").map((one) => [0, 2, 4].map((at) => parseInt(one.slice(at, at + 2), 16)));
  return Array.from({ length: 256 }, (_, level) => {
    if (level === 255) return NOT_FINITE;
    const at = (level / 254) * (anchors.length - 1);
    const low = Math.min(Math.floor(at), anchors.length - 2);
    return anchors[low].map((one, n) => Math.round(one + (anchors[low + 1][n] - one) * (at - low)));
  });
}

function bytesOf(text) {
  return Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
}

function drawMaps(canvas, image, name) {
  const { height, width } = image;
  const number = image.channels.length;
  const columns = Math.min(number, 6);
  const rows = Math.ceil(number / columns);
  const table = colorTable(name === "auto" ? (image.low < 0 ? "RdBu" : "viridis") : name);
  const levels = bytesOf(image.data);
  canvas.width = columns * (width + 1) - 1;
  canvas.height = rows * (height + 1) - 1;
  const zoom = Math.max(1, Math.floor(Math.min(96 / width, 600 / canvas.width)));
  canvas.style.width = `${canvas.width * zoom}px`;
  const context = canvas.getContext("2d");
  for (let channel = 0; channel < number; channel++) {
    const pixels = context.createImageData(width, height);
    for (let at = 0; at < width * height; at++) {
      const [red, green, blue] = table[levels[channel * width * height + at]];
      pixels.data.set([red, green, blue, 255], 4 * at);
    }
    context.putImageData(pixels, (channel % columns) * (width + 1), Math.floor(channel / columns) * (height + 1));
  }
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Feature maps of ${image.site}, from ${text(image.smallest)} to ${text(image.largest)}`);
}

// Histograms over steps: a column for each step, and nothing where no element is. One step alone is
// drawn as bars.
function drawSpread(canvas, spread) {
  const table = colorTable("viridis");
  const counts = bytesOf(spread.counts);
  const { bins, steps } = spread;
  if (steps.length === 1) {
    drawBars(canvas, counts, bins);
    return;
  }
  canvas.width = steps.length;
  canvas.height = bins;
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(steps.length, bins);
  for (let column = 0; column < steps.length; column++) {
    for (let bin = 0; bin < bins; bin++) {
      const level = counts[column * bins + bin];
      const [red, green, blue] = table[Math.min(level, 254)];
      pixels.data.set([red, green, blue, level ? 255 : 0], 4 * ((bins - 1 - bin) * steps.length + column));
    }
  }
  context.putImageData(pixels, 0, 0);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Histograms of steps ${steps[0]} to ${steps.at(-1)}, from ${text(spread.low)} to ${text(spread.high)}`);
}

function drawBars(canvas, counts, bins) {
  canvas.width = 6 * bins;
  canvas.height = 128;
  const context = canvas.getContext("2d");
  context.fillStyle = color("--one");
  for (let bin = 0; bin < bins; bin++) context.fillRect(6 * bin, 128 - counts[bin] / 2, 5, counts[bin] / 2);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", "Histogram");
}

function svgElement(name, attributes, content = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (content) made.textContent = content;
  return made;
}

// Magnitudes over depth on a logarithmic axis, as the page draws them without scripts.
function drawFlow(host, lines, onSite) {
  const [width, height, left] = [Math.max(host.clientWidth, 320), 260, 56];
  const svg = svgElement("svg", { class: "flow", viewBox: `0 0 ${width} ${height}`, role: "img" });
  svg.setAttribute("aria-label", "Largest magnitudes over depth");
  const seen = lines.flatMap((one) => one.points.map((point) => point.value)).filter((one) => one > 0 && Number.isFinite(one));
  host.replaceChildren(svg);
  const [most, least] = seen.length ? [Math.max(...seen), Math.min(...seen)] : [1, 1];
  const top = Math.ceil(Math.log10(most) + 1e-9);
  const bottom = Math.min(Math.max(Math.floor(Math.log10(least)), top - 12), top - 1);
  const scale = (height - 58) / (top - bottom);
  const y = (value) => (value > 0 ? 16 + (top - Math.max(Math.log10(value), bottom)) * scale : height - 30);
  for (let power = bottom; power <= top; power += Math.max(1, Math.floor((top - bottom) / 6))) {
    const row = 16 + (top - power) * scale;
    svg.append(svgElement("path", { class: "grid", d: `M${left} ${row}H${width}` }));
    svg.append(svgElement("text", { x: left - 6, y: row + 4 }, text(10 ** power)));
  }
  if (lines.some((line) => line.points.some((point) => point.value === 0))) {
    svg.append(svgElement("text", { x: left - 6, y: height - 26 }, "0"));
  }
  const named = lines.reduce((one, two) => (two.points.length > one.points.length ? two : one)).points;
  svg.append(svgElement("text", { class: "first", x: left, y: height - 4 }, named[0].site));
  svg.append(svgElement("text", { x: width, y: height - 4 }, named.at(-1).site));
  for (const line of lines) {
    const group = svgElement("g", { class: line.look });
    const step = (width - left - 16) / Math.max(line.points.length - 1, 1);
    const drawn = line.points.map((point, n) => [left + 8 + n * step, point]);
    const finite = drawn.filter(([, point]) => Number.isFinite(point.value));
    group.append(svgElement("path", { d: finite.map(([x, point], n) => `${n ? "L" : "M"}${x.toFixed(1)} ${y(point.value).toFixed(1)}`).join("") }));
    for (const [x, point] of drawn) {
      if (Number.isNaN(point.value) && !point.isBad) continue;
      const mark = point.isBad
        ? svgElement("path", { class: "cross", d: `M${x - 3} 5l6 6m0-6l-6 6` })
        : svgElement("circle", { cx: x.toFixed(1), cy: y(point.value).toFixed(1), r: line.points.length > 120 ? 1.5 : 3 });
      const said = point.isBad ? `${grouped(point.bad)} elements are not finite` : text(point.value);
      mark.append(svgElement("title", {}, `${point.site}: ${said}`));
      mark.addEventListener("click", () => onSite(point.site));
      group.append(mark);
    }
    svg.append(group);
  }
}
