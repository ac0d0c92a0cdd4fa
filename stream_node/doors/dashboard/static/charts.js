// The charts of a page: asks the node for new points every two seconds and draws them with uPlot.
"use strict";
(() => {
  const folder = document.getElementById("charts");
  const kept = 450;
  const bytes = (value) => {
    let unit = 0;
    while (value >= 1024 && unit < 4) { value /= 1024; unit += 1; }
    return `${+value.toFixed(value < 10 ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
  };
  const plain = (value) => (value >= 10000 ? `${+(value / 1000).toFixed(1)}k` : `${+value.toFixed(2)}`);
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  let columns = [];
  let charts = [];

  const values = (chart) => [columns[0] ?? [], ...chart.dataset.columns.split(",").map((number) => columns[number] ?? [])];

  function draw() {
    charts.forEach((chart) => chart.destroy());
    const size = (element) => ({ width: Math.max(200, element.clientWidth), height: 190 });
    charts = [...folder.querySelectorAll(".chart")].map((element) => {
      const text = element.dataset.unit === "bytes" ? bytes : plain;
      const axis = { stroke: style("--soft"), grid: { stroke: style("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
      const options = {
        ...size(element), legend: { show: false }, cursor: { y: false },
        scales: { y: { range: (plot, low, high) => [0, Math.max(high * 1.1, 1)] } },
        axes: [{ ...axis, space: 70, size: 28, values: [[60, "{HH}:{mm}"], [1, "{HH}:{mm}:{ss}"]].map(([step, form]) => [step, form, null, null, null, null, null, null, 1]) }, { ...axis, size: 66, ...(element.dataset.unit === "bytes" ? { incrs: Array.from({ length: 50 }, (_, power) => 2 ** power) } : {}), values: (plot, ticks) => ticks.map(text) }],
        series: [{}, ...element.dataset.names.split(",").map((label, number) => ({
          label, stroke: style(["--a", "--b", "--c"][number]), width: 2, points: { show: false }, spanGaps: false,
        }))],
        tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      };
      const chart = new uPlot(options, values(element), element);
      chart.source = element;
      return chart;
    });
  }

  async function load() {
    const after = columns[0]?.at(-1) ?? 0;
    try {
      const answer = await fetch(`${folder.dataset.source}${folder.dataset.source.includes("?") ? "&" : "?"}after=${after}`, { headers: { "hx-request": "true" } });
      if (!answer.ok) return;
      const found = (await answer.json()).columns;
      // After a restart of the node, its points begin anew.
      columns = found.map((column, number) => [...(columns[number] ?? []), ...column].slice(-kept));
      charts.forEach((chart) => chart.setData(values(chart.source)));
      folder.dataset.points = columns[0].length;
      folder.dataset.highest = Math.max(0, ...columns[1]);
    } catch {
      // The node is gone; the next round asks again.
    }
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  new ResizeObserver(() => charts.forEach((chart) => chart.setSize({ width: Math.max(200, chart.source.clientWidth), height: 190 }))).observe(folder);
  draw();
  load();
  setInterval(() => { if (!document.hidden) load(); }, 2000);
})();
