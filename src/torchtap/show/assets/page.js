// The page: its data, its parts, the step and the site that are chosen, and its address.

async function readData(element) {
  const content = element.textContent.trim();
  if (element.dataset.encoding === "json") return JSON.parse(content);
  const stream = new Blob([bytesOf(content)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

class ReportPage {
  constructor(data) {
    this.data = data;
    this.detail = document.getElementById("detail");
    this.site = "";
    this.name = "std";
    this.isLog = false;
    this.charts = [];
    this.findSteps();
    this.step = this.steps.at(-1) ?? 0;
    this.table = new SiteTable(this);
    this.tabs = [...document.querySelectorAll("[role=tab]")];
    this.prepareTabs();
    this.prepareCursor();
    this.prepareKeys();
    this.prepareTheme();
    this.prepareMaps();
    this.prepareGraph();
    window.addEventListener("hashchange", () => this.readAddress());
    window.addEventListener("popstate", () => this.readAddress());
    window.addEventListener("resize", () => {
      clearTimeout(this.resizing);
      this.resizing = setTimeout(() => this.redraw(), 150);
    });
    this.readAddress();
    this.drawScalars();
    this.detail.hidden = !this.site;
    performance.mark("torchtap ready");
    document.documentElement.dataset.ready = "yes";
  }

  findSteps() {
    const all = this.data.runs.flatMap((run) => [...run.steps, ...(run.last_steps ?? []).slice(-1)]);
    this.steps = [...new Set(all)].sort((one, two) => one - two);
  }

  // ------------------------------------------------------------------ parts of the page

  prepareTabs() {
    const list = document.querySelector("[role=tablist]");
    list.hidden = false;
    document.documentElement.classList.add("scripted");
    for (const tab of this.tabs) tab.addEventListener("click", () => this.go({ tab: tab.id.slice(4) }));
    list.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (move === undefined) return;
      const at = this.tabs.findIndex((one) => one.getAttribute("aria-selected") === "true");
      const next = this.tabs[(at + move + this.tabs.length) % this.tabs.length];
      next.focus();
      this.go({ tab: next.id.slice(4) });
      event.stopPropagation();
      event.preventDefault();
    });
    this.select("overview");
  }

  select(name) {
    if (!this.tabs.some((one) => one.id === `tab-${name}`)) return;
    this.tab = name;
    for (const tab of this.tabs) {
      const isChosen = tab.id === `tab-${name}`;
      tab.setAttribute("aria-selected", String(isChosen));
      tab.tabIndex = isChosen ? 0 : -1;
      document.getElementById(tab.getAttribute("aria-controls")).hidden = !isChosen;
    }
    this.redraw();
  }

  redraw() {
    if (this.tab === "overview") this.drawScalars();
    if (this.tab === "flow") this.drawFlow();
    if (this.tab === "table" && this.site) this.drawDetail();
  }

  // ------------------------------------------------------------------ the address

  readAddress() {
    const asked = new URLSearchParams(location.hash.slice(1).replace(/\+/g, "%2B"));
    const step = asked.get("step");
    const isStep = step !== null && step !== "" && Number.isFinite(Number(step));
    const site = asked.get("site") ?? "";
    const isOther = site !== this.site;
    this.site = this.data.sites[site] === undefined ? "" : site;
    this.setStep(isStep ? Number(step) : this.steps.at(-1));
    this.select(asked.get("tab") ?? (site ? "table" : "overview"));
    if (isOther) this.show(this.site);
  }

  // Go to another site, step or part of the page: the address says all three.
  go(changed) {
    const next = { tab: this.tab, site: this.site, step: this.step, ...changed };
    const parts = [];
    if (next.site) parts.push(`site=${encodeURIComponent(next.site)}`);
    if (next.step !== this.steps.at(-1)) parts.push(`step=${next.step}`);
    if (next.tab !== (next.site ? "table" : "overview")) parts.push(`tab=${next.tab}`);
    const address = `#${parts.join("&")}`;
    if (changed.step !== undefined && Object.keys(changed).length === 1) {
      // A step is no place of its own: "back" leads to the site before, not through every step.
      history.replaceState(null, "", address);
      this.setStep(next.step);
      return;
    }
    if (location.hash !== address) history.pushState(null, "", address);
    this.readAddress();
  }

  open(name) {
    this.go({ site: name, tab: "table" });
  }

  // ------------------------------------------------------------------ the step

  prepareCursor() {
    if (this.steps.length < 2) return;
    document.getElementById("cursor").hidden = false;
    this.slider = document.getElementById("step");
    this.slider.max = String(this.steps.length - 1);
    this.slider.addEventListener("input", () => this.go({ step: this.steps[Number(this.slider.value)] }));
    document.getElementById("earlier").addEventListener("click", () => this.move(-1));
    document.getElementById("later").addEventListener("click", () => this.move(1));
    this.showStepText();
  }

  place() {
    return partAt({ steps: this.steps }, this.step);
  }

  move(distance) {
    const next = Math.min(Math.max(this.place() + distance, 0), this.steps.length - 1);
    if (this.steps.length) this.go({ step: this.steps[next] });
  }

  setStep(step) {
    if (!this.steps.length) return;
    const place = partAt({ steps: this.steps }, step);
    // The nearest step that there is.
    const next = this.steps[place + 1];
    this.step = next !== undefined && next - step < step - this.steps[place] ? next : this.steps[place];
    this.showStepText();
    this.table.showStep();
    for (const chart of this.charts) chart.showStep();
    if (this.tab === "flow") this.drawFlow();
    if (this.site) this.fillNumbers();
  }

  showStepText() {
    if (this.slider === undefined) return;
    this.slider.value = String(this.place());
    const run = this.data.runs[0];
    const last = run.last_steps?.[partAt(run, this.step)] ?? this.step;
    const shown = last > this.step ? `${grouped(this.step)} to ${grouped(last)}` : grouped(this.step);
    document.getElementById("step-text").textContent = `${shown} of ${grouped(this.steps.at(-1))}`;
    this.slider.setAttribute("aria-valuetext", `step ${shown}`);
  }

  // ------------------------------------------------------------------ one site

  show(name) {
    this.table.mark(name);
    this.drawDetail();
  }

  clearCharts(host) {
    this.charts = this.charts.filter((chart) => {
      const isInside = host.contains(chart.root);
      if (isInside) chart.destroy();
      return !isInside;
    });
  }

  drawDetail() {
    this.clearCharts(this.detail);
    this.detail.hidden = !this.site;
    if (!this.site) {
      this.detail.replaceChildren(element("p", {}, "Choose a site to see its series, histograms and maps."));
      return;
    }
    const site = this.data.sites[this.site];
    const facts = [site.type, site.shape === null ? site.dtype : `${site.dtype}[${site.shape.join(", ")}]`,
      site.calls > 1 ? `${grouped(site.calls)} calls a step` : "", this.data.known_zero[this.site] ? `zero by construction: ${this.data.known_zero[this.site]}` : ""];
    const close = element("button", { type: "button", "aria-label": "Close the site" }, "×");
    close.addEventListener("click", () => this.go({ site: "" , tab: "table" }));
    const chart = element("div", { class: "plot" });
    const hasSteps = this.steps.length > 1;
    this.detail.replaceChildren(
      element("div", { class: "bar" }, element("h2", {}, this.site), close),
      element("p", { class: "soft" }, facts.filter(Boolean).join(" · ")),
      ...this.warnings(), ...(hasSteps ? [this.nameBar(), chart] : []), ...this.spreads(), ...this.ownMaps(),
      element("table", { class: "facts", id: "numbers" }),
    );
    const lines = this.lines((run) => run.series[this.site]?.[this.name], (run) => run.series[this.site]?.nonfinite);
    if (lines.length && hasSteps) this.charts.push(drawChart(chart, lines, this.chartSettings(this.isLog)));
    this.fillNumbers();
  }

  warnings() {
    return this.data.runs
      .filter((run) => run.first_bad[this.site] !== undefined)
      .map((run) => {
        const step = run.first_bad[this.site];
        const link = element("button", { type: "button", class: "link" }, `step ${grouped(step)}`);
        link.addEventListener("click", () => this.go({ step }));
        return element("p", { class: "bad" }, "NaN or infinity first in ", link, this.data.runs.length > 1 ? ` of ${run.label}` : "");
      });
  }

  nameBar() {
    const bar = element("div", { class: "choices", role: "group", "aria-label": "Number" });
    const names = new Set(this.data.runs.flatMap((run) => Object.keys(run.series[this.site] ?? {})));
    if (!names.has(this.name)) this.name = "std";
    for (const name of names) {
      const button = element("button", { type: "button", "aria-pressed": String(name === this.name) }, name === "nonfinite" ? "NaN/Inf" : name);
      button.addEventListener("click", () => {
        this.name = name;
        this.drawDetail();
        this.detail.querySelector(".choices [aria-pressed=true]").focus();
      });
      bar.append(button);
    }
    const log = element("button", { type: "button", "aria-pressed": String(this.isLog) }, "log axis");
    log.addEventListener("click", () => {
      this.isLog = !this.isLog;
      this.drawDetail();
    });
    bar.append(log);
    return bar;
  }

  lines(packedOf, badOf) {
    return this.data.runs
      .map((run) => ({ run, label: this.data.runs.length > 1 ? run.label : this.name, packed: packedOf(run), bad: badOf(run) }))
      .filter((line) => line.packed !== undefined && line.run.steps.length);
  }

  chartSettings(isLog, height = 220) {
    return { isLog, height, step: () => this.step, onStep: (step) => this.go({ step }) };
  }

  spreads() {
    return this.data.runs.filter((run) => run.spread[this.site]).map((run) => {
      const spread = run.spread[this.site];
      const canvas = element("canvas", { class: "spread" });
      drawSpread(canvas, spread);
      const label = this.data.runs.length > 1 ? `, ${run.label}` : "";
      const ends = [text(asNumber(spread.low)), text(asNumber(spread.high))];
      const said = spread.steps.length > 1
        ? `Histograms${label}: steps ${grouped(spread.steps[0])} to ${grouped(spread.steps.at(-1))}, from ${ends[0]} (below) to ${ends[1]} (above), counts on a logarithmic scale`
        : `Histogram${label}: step ${grouped(spread.steps[0])}, from ${ends[0]} (left) to ${ends[1]} (right), counts on a logarithmic scale`;
      return element("figure", {}, element("figcaption", {}, said), canvas);
    });
  }

  ownMaps() {
    return this.data.maps.filter((one) => one.site === this.site && one.data).map((one) => {
      const canvas = element("canvas", {});
      drawMaps(canvas, one, document.getElementById("colors")?.value ?? "auto");
      return element("figure", { class: "maps" }, element("figcaption", {}, `Feature maps of step ${grouped(one.step)}`), canvas);
    });
  }

  fillNumbers() {
    const table = document.getElementById("numbers");
    if (table === null) return;
    const rows = [];
    for (const run of this.data.runs) {
      const series = run.series[this.site];
      if (series === undefined) continue;
      const part = partAt(run, this.step);
      const isLast = this.step >= lastStep(run);
      const last = run.last[this.site];
      const label = this.data.runs.length > 1 ? `${run.label}, ` : "";
      rows.push(element("caption", {}, isLast ? `${label}step ${grouped(last.step ?? this.step)}` : `${label}step ${grouped(this.step)}`));
      const pairs = isLast
        ? Object.entries(last).filter(([name]) => name !== "step").map(([name, value]) => [name, text(asNumber(value))])
        : Object.entries(series).map(([name, packed]) => {
            const [low, high] = lowHighAt(packed, part);
            const ends = [cellText(name, low), cellText(name, high)];
            return [name, ends[0] === ends[1] ? ends[0] : `${ends[0]} to ${ends[1]}`];
          });
      for (const [name, value] of pairs) rows.push(element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, value)));
    }
    table.replaceChildren(...rows);
  }

  // ------------------------------------------------------------------ pictures

  drawScalars() {
    for (const host of document.querySelectorAll("[data-scalar]")) {
      this.clearCharts(host);
      const name = host.dataset.scalar;
      const lines = this.data.runs
        .filter((run) => run.scalars[name] !== undefined && run.steps.length)
        .map((run) => ({ run, label: this.data.runs.length > 1 ? run.label : name, packed: run.scalars[name], bad: run.bad_scalars[name] }));
      if (lines.length && host.clientWidth) this.charts.push(drawChart(host, lines, this.chartSettings(false, 180)));
    }
  }

  drawFlow() {
    const lines = [];
    this.data.runs.forEach((run, number) => {
      const part = partAt(run, this.step);
      const isLast = this.step >= lastStep(run);
      for (const [port, look] of [["output", "forward"], ["grad_output", "backward"]]) {
        const points = Object.entries(run.series)
          .filter(([name]) => this.data.sites[name].port === port)
          .map(([site, series]) => {
            const at = (name) => isLast ? lastNumber(run.last[site], name) : lowHighAt(series[name], part)[1];
            const bad = at("nonfinite");
            return { site, value: at("absmax"), bad, isBad: bad > 0 };
          })
          .sort((one, two) => this.data.sites[one.site].depth - this.data.sites[two.site].depth);
        if (points.length) lines.push({ look: look + (number ? "2" : ""), points });
      }
    });
    if (lines.length) drawFlow(document.getElementById("flow-chart"), lines, (site) => this.open(site));
  }

  prepareMaps() {
    const choice = document.getElementById("colors");
    const draw = () => {
      for (const host of document.querySelectorAll("figure[data-maps]")) {
        const image = this.data.maps.find((one) => one.site === host.dataset.maps);
        if (image?.data) drawMaps(host.querySelector("canvas"), image, choice.value);
      }
    };
    if (choice === null) return;
    choice.addEventListener("change", draw);
    draw();
  }

  prepareGraph() {
    for (const box of document.querySelectorAll("[data-path]")) {
      const go = () => {
        const site = Object.keys(this.data.sites).find((one) => this.data.sites[one].path === box.dataset.path);
        if (site !== undefined) this.open(site);
        else {
          this.table.filter.value = `${box.dataset.path}.*:*`;
          this.table.apply();
          this.go({ tab: "table" });
        }
      };
      box.addEventListener("click", go);
      box.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") go();
      });
    }
  }

  // ------------------------------------------------------------------ keyboard, theme

  prepareKeys() {
    const dialog = document.getElementById("keys");
    const help = document.getElementById("help");
    help.hidden = false;
    help.addEventListener("click", () => dialog.showModal());
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
      const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
      if (event.key === "Escape") return this.escape();
      if (isTyping) return;
      const number = Number(event.key);
      if (number >= 1 && number <= this.tabs.length) this.go({ tab: this.tabs[number - 1].id.slice(4) });
      else if (event.key === "/") {
        this.go({ tab: "table" });
        setTimeout(() => this.table.filter.focus());
      } else if (event.key === "?") dialog.showModal();
      else if (["j", "ArrowDown", "k", "ArrowUp"].includes(event.key) && this.tab === "table") this.moveSite(event.key === "j" || event.key === "ArrowDown" ? 1 : -1);
      else if (event.key === "ArrowLeft") this.move(-1);
      else if (event.key === "ArrowRight") this.move(1);
      else return;
      event.preventDefault();
    });
    this.table.filter.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "ArrowDown") return;
      this.table.filter.blur();
      const first = this.table.beside("", 1);
      if (first !== undefined) this.open(first);
      event.preventDefault();
    });
  }

  moveSite(distance) {
    const next = this.table.beside(this.site, distance);
    if (next === undefined) return;
    this.open(next);
  }

  escape() {
    if (this.table.filter.value) {
      this.table.filter.value = "";
      this.table.apply();
    } else if (this.site) this.go({ site: "", tab: this.tab });
    this.table.filter.blur();
  }

  prepareTheme() {
    const button = document.getElementById("theme");
    const prefersDark = matchMedia("(prefers-color-scheme: dark)");
    const isDark = () => (document.documentElement.dataset.theme ?? (prefersDark.matches ? "dark" : "light")) === "dark";
    const show = () => {
      button.textContent = isDark() ? "Light" : "Dark";
      this.redraw();
    };
    button.hidden = false;
    button.addEventListener("click", () => {
      document.documentElement.dataset.theme = isDark() ? "light" : "dark";
      show();
    });
    prefersDark.addEventListener("change", show);
    button.textContent = isDark() ? "Light" : "Dark";
  }

  // ------------------------------------------------------------------ a run that grows

  take(data) {
    const wasLast = this.step === this.steps.at(-1);
    if (Object.keys(data.sites).join() !== Object.keys(this.data.sites).join()) {
      location.reload(); // Rows are written by torchtap: other sites need another page.
      return;
    }
    this.data = data;
    document.querySelector("header p").textContent = data.subtitle;
    this.findSteps();
    if (this.slider === undefined) this.prepareCursor();
    else this.slider.max = String(this.steps.length - 1);
    this.setStep(wasLast ? this.steps.at(-1) : this.step);
    this.redraw();
  }

  async follow(address) {
    let tag = "";
    for (;;) {
      await new Promise((done) => setTimeout(done, 2000));
      try {
        const answer = await fetch(address, { cache: "no-store", headers: tag ? { "If-None-Match": tag } : {} });
        if (answer.status === 200) {
          tag = answer.headers.get("ETag") ?? "";
          this.take(await answer.json());
        }
        document.documentElement.dataset.server = "there";
      } catch {
        document.documentElement.dataset.server = "gone";
      }
    }
  }
}

readData(document.getElementById("data")).then((data) => {
  const page = new ReportPage(data);
  if (document.body.dataset.live) page.follow(`data.json${location.search}`);
});
