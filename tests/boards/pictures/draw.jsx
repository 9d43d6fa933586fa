// Draws a board's JSON with the components that Grafana publishes (npm: @grafana/ui), for people to look at.
// shoot.py says how to make a picture. Grafana publishes no component for state timelines and heat maps: SVG below draws
// them from the same options, values, texts and colours.
import React from 'react';
import { createRoot } from 'react-dom/client';
import {
  applyFieldOverrides, createTheme, dateTime, FieldConfigOptionsRegistry, FieldType, getFieldDisplayName, reduceField,
  ThemeContext, toDataFrame,
} from '@grafana/data';
import { TableNG } from '@grafana/ui/unstable';
import { initPluginTranslations } from '@grafana/i18n';
import { BarGauge, BigValue, GlobalStyles, PanelChrome, TimeSeries } from '@grafana/ui';
const theme = createTheme({ colors: { mode: 'dark' } });
const registry = new FieldConfigOptionsRegistry();
const put = (id, path, isCustom) => registry.register({ id: isCustom ? `custom.${path}` : id, path, name: id, isCustom, process: (v) => v, shouldApply: () => true, editor: () => null, override: () => null, settings: {} });
for (const p of ['unit','min','max','decimals','displayName','noValue','thresholds','mappings','color','links','description','filterable']) put(p, p, false);
for (const p of ['drawStyle','lineInterpolation','lineWidth','fillOpacity','gradientMode','spanNulls','showPoints','pointSize','stacking','axisPlacement','axisLabel','axisColorMode','scaleDistribution','axisCenteredZero','hideFrom','thresholdsStyle','lineStyle','axisSoftMin','axisSoftMax','barAlignment','insertNulls','align','minWidth','cellOptions','inspect','axisBorderShow']) put(p, p, true);
function legend(format, labels) { const t = format.replace(/\{\{(\w+)\}\}/g, (_, k) => labels[k] ?? ''); return t; }
function frames(panel, data) {
  const out = [];
  for (const target of panel.targets) {
    for (const s of data[target.refId] ?? []) {
      const labels = { ...s.labels };
      out.push(toDataFrame({ refId: target.refId, meta: { type: 'timeseries-multi' }, fields: [
        { name: 'Time', type: FieldType.time, values: s.times.map((t) => t * 1000), config: { interval: 15000 } },
        { name: 'Value', type: FieldType.number, labels, values: s.values, config: { displayNameFromDS: legend(target.legendFormat, labels) } },
      ] }));
    }
  }
  return out;
}
function named(data) { for (const f of data) for (const x of f.fields) getFieldDisplayName(x, f, data); return data; }
function overridden(panel, data) {
  return applyFieldOverrides({ data: named(data), fieldConfig: panel.fieldConfig, replaceVariables: (v) => v, theme, timeZone: 'utc', fieldConfigRegistry: registry });
}
function table(panel, data) {
  const tables = panel.targets.map((target) => {
    const rows = data[target.refId] ?? [];
    const names = [...new Set(rows.flatMap((r) => Object.keys(r.labels)))].sort();
    const value = panel.targets.length > 1 ? `Value #${target.refId}` : 'Value';
    return { names, value, rows: rows.map((r) => ({ ...r.labels, [value]: r.values[r.values.length - 1] })) };
  });
  const organize = panel.transformations.find((t) => t.id === 'organize')?.options;
  const matrix = panel.transformations.find((t) => t.id === 'groupingToMatrix')?.options;
  let columns, rows;
  if (matrix) {
    const all = tables[0].rows; const cols = [...new Set(all.map((r) => r[matrix.columnField]))];
    const head = `${matrix.rowField}\\${matrix.columnField}`;
    const keys = [...new Set(all.map((r) => r[matrix.rowField]))];
    rows = keys.map((k) => ({ [head]: k, ...Object.fromEntries(cols.map((c) => [c, all.find((r) => r[matrix.rowField] === k && r[matrix.columnField] === c)?.Value ?? null])) }));
    columns = [head, ...cols];
  } else {
    const merged = new Map();
    for (const t of tables) for (const r of t.rows) {
      const key = JSON.stringify(Object.entries(r).filter(([k]) => !k.startsWith('Value')).sort());
      merged.set(key, { ...(merged.get(key) ?? {}), ...r });
    }
    rows = [...merged.values()];
    columns = [...new Set([...tables.flatMap((t) => t.names), ...tables.map((t) => t.value)])].filter((c) => !organize.excludeByName[c] && !organize.excludeByName[organize.renameByName[c]]);
  }
  const frame = toDataFrame({ fields: columns.map((c) => ({ name: organize?.renameByName[c] ?? c, type: rows.every((r) => r[c] == null || typeof r[c] === 'number') ? FieldType.number : FieldType.string, values: rows.map((r) => r[c] ?? null), config: {} })) });
  return overridden(panel, [frame])[0];
}
function Viz({ panel, data, width, height }) {
  const range = window.RANGES[panel.id]; const timeRange = { from: dateTime(range[0] * 1000), to: dateTime(range[1] * 1000), raw: { from: 'now-5m', to: 'now' } };
  if (panel.type === 'table') {
    const frame = table(panel, data);
    return frame.length ? <TableNG data={frame} width={width} height={height} initialSortBy={panel.options.sortBy} enableSharedCrosshair={false} fieldConfig={panel.fieldConfig} structureRev={1} getActions={() => []} replaceVariables={(v) => v} /> : <Empty panel={panel} />;
  }
  const all = overridden(panel, frames(panel, data));
  if (!all.length) return <Empty panel={panel} />;
  if (panel.type === 'timeseries') {
    // Grafana counts series over all frames of a panel before it draws; then lines and legend have one colour.
    const colours = theme.visualization.palette;
    all.forEach((f, i) => f.fields.slice(1).forEach((x) => {
      if ((x.config.color?.mode ?? 'palette-classic').startsWith('palette-classic')) x.config = { ...x.config, color: { mode: 'fixed', fixedColor: colours[i % colours.length] } };
      x.state = { ...x.state, seriesIndex: i };
    }));
    return <TimeSeries frames={all} width={width} height={height} timeRange={timeRange} timeZone="utc" legend={panel.options.legend} options={panel.options} />;
  }
  const values = all.map((f) => { const field = f.fields[1]; const v = reduceField({ field, reducers: ['lastNotNull'] }).lastNotNull; const d = field.display(v); return { ...d, title: field.config.displayNameFromDS }; });
  if (panel.type === 'stat') return <div style={{ display: 'flex', flexWrap: 'wrap', height }}>{values.map((v, i) => <BigValue key={i} value={values.length > 1 || v.title ? v : { ...v, title: '' }} width={width / Math.min(values.length, 3)} height={height / Math.ceil(values.length / 3)} theme={theme} colorMode={panel.options.colorMode} graphMode="none" justifyMode="auto" textMode={panel.options.textMode} />)}</div>;
  if (panel.type === 'bargauge') return <div>{all.map((f, i) => <BarGauge key={i} value={values[i]} field={f.fields[1].config} display={f.fields[1].display} width={width} height={22} orientation="horizontal" displayMode="basic" theme={theme} showUnfilled namePlacement="left" />)}</div>;
  if (panel.type === 'heatmap') return <HeatMap panel={panel} frames={all} range={range} width={width} height={height} />;
  if (panel.type === 'state-timeline') return <StateTimeline frames={all} range={range} width={width} height={height} />;
  throw new Error(`no way to draw a ${panel.type} panel`);
}
const AXIS = 20, MUTED = theme.colors.text.secondary, SMALL = { fontSize: 11, fill: MUTED };
const clip = (text, pixels) => { const most = Math.floor(pixels / 6); return text.length <= most ? text : most < 2 ? '' : `${text.slice(0, most - 1)}…`; };
function TimeAxis({ range: [from, to], left, width, height }) {
  const count = Math.max(2, Math.floor(width / 110));
  const ticks = Array.from({ length: count }, (_, i) => from + (to - from) * (i + 0.5) / count);
  return ticks.map((t) => <text key={t} x={left + width * (t - from) / (to - from)} y={height - 5} textAnchor="middle" style={SMALL}>{new Date(t * 1000).toISOString().slice(11, 19)}</text>);
}
const place = (t, [from, to], left, width) => left + width * Math.min(1, Math.max(0, (t / 1000 - from) / (to - from)));
// A bucket is what its `le` counts beyond the one below, as Grafana's format "heatmap" has it; colours are of d3's "Blues".
function HeatMap({ panel, frames: all, range, width, height }) {
  const bound = (f) => Number((f.fields[1].labels.le ?? '').replace('+Inf', 'Infinity'));
  const rows = [...all].sort((a, b) => bound(a) - bound(b)).map((f) => ({ le: f.fields[1].labels.le, at: new Map(f.fields[0].values.map((t, i) => [t, f.fields[1].values[i]])) }));
  const times = [...new Set(rows.flatMap((r) => [...r.at.keys()]))].sort((a, b) => a - b);
  const cell = (i, t) => Math.max(0, (rows[i].at.get(t) ?? 0) - (i ? rows[i - 1].at.get(t) ?? 0 : 0));
  const cells = rows.flatMap((_, i) => times.map((t) => ({ i, t, value: cell(i, t) }))).filter((c) => c.value > panel.options.filterValues.le);
  const used = cells.map((c) => c.i), low = Math.max(0, Math.min(...used) - 1), high = Math.max(...used);
  if (!cells.length) return <Empty panel={panel} />;
  const most = Math.max(...cells.map((c) => c.value)), left = 62, inner = width - left, tall = (height - AXIS) / (high - low + 1), wide = inner / times.length;
  const blue = (share) => `hsl(210, ${55 + 35 * share}%, ${24 + 52 * share}%)`;
  return <svg width={width} height={height}>
    {cells.map((c) => <rect key={`${c.i} ${c.t}`} x={left + inner * times.indexOf(c.t) / times.length} y={(high - c.i) * tall} width={Math.max(0.5, wide - panel.options.cellGap)} height={Math.max(0.5, tall - panel.options.cellGap)} fill={blue((c.value / most) ** panel.options.color.exponent)} />)}
    {rows.map((r, i) => i >= low && i <= high && (tall > 12 || (high - i) % Math.ceil(12 / tall) === 0) && <text key={i} x={left - 6} y={(high - i) * tall + tall / 2 + 4} textAnchor="end" style={SMALL}>{`${r.le} ${panel.options.yAxis.unit === 's' ? 's' : ''}`}</text>)}
    <TimeAxis range={range} left={left} width={inner} height={height} />
  </svg>;
}
function StateTimeline({ frames: all, range, width, height }) {
  const left = Math.min(260, width * 0.3), inner = width - left, row = (height - AXIS) / all.length, end = range[1] * 1000;
  return <svg width={width} height={height}>
    {all.map((f, i) => {
      const [times, field] = [f.fields[0].values, f.fields[1]], spans = [];
      times.forEach((t, k) => {
        if (field.values[k] == null) return;
        const shown = field.display(field.values[k]), text = shown.text + (shown.suffix ?? ''), last = spans[spans.length - 1], until = times[k + 1] ?? end;
        if (last && last.text === text && last.until === t) last.until = until; else spans.push({ text, color: shown.color, from: t, until });
      });
      return <g key={i}>
        <text x={left - 8} y={i * row + row / 2 + 4} textAnchor="end" style={SMALL}>{clip(field.config.displayNameFromDS ?? '', left - 10)}</text>
        {spans.map((one) => {
          const x = place(one.from, range, left, inner), w = place(one.until, range, left, inner) - x;
          return <g key={one.from}><rect x={x} y={i * row + row * 0.05} width={w} height={row * 0.9} fill={one.color} fillOpacity={0.7} />
            {row > 11 && <text x={x + 4} y={i * row + row / 2 + 4} style={{ fontSize: 11, fill: '#fff' }}>{clip(one.text, w - 6)}</text>}</g>;
        })}
      </g>;
    })}
    <TimeAxis range={range} left={left} width={inner} height={height} />
  </svg>;
}
const Empty = ({ panel }) => <div style={{ padding: 12, opacity: 0.8, textAlign: 'center' }}>{panel.fieldConfig.defaults.noValue}</div>;
class Guard extends React.Component {
  constructor(p) { super(p); this.state = {}; }
  static getDerivedStateFromError(e) { return { e }; }
  render() { return this.state.e ? <pre className="broken">{String(this.state.e.stack).slice(0, 600)}</pre> : this.props.children; }
}
function Board() {
  const board = window.BOARD, unit = 1280 / 24;
  const bottom = Math.max(...board.panels.map((p) => p.gridPos.y + p.gridPos.h));
  return <div style={{ position: 'relative', width: 1280, height: bottom * 38 + 60, background: theme.colors.background.canvas }}>
    <h3 style={{ padding: '10px 14px', margin: 0, color: theme.colors.text.primary }}>{board.title}</h3>
    {board.panels.map((p) => {
      const g = p.gridPos, w = g.w * unit - 8, h = g.h * 38 - 8;
      const place = { position: 'absolute', left: g.x * unit + 4, top: 50 + g.y * 38, width: w, height: h };
      if (p.type === 'row') return <div key={p.id} style={{ ...place, fontWeight: 500, paddingTop: 6, color: theme.colors.text.primary }}>{p.title}</div>;
      return <div key={p.id} style={place}><Guard><PanelChrome title={p.title} description={p.description} width={w} height={h} padding="none">{(iw, ih) => p.type === 'text' ? <div style={{ padding: 10, whiteSpace: 'pre-wrap', columns: 2, fontSize: 12 }}>{p.options.content}</div> : <Guard><Viz panel={p} data={window.DATA[p.id] ?? {}} width={iw - 12} height={ih - 8} /></Guard>}</PanelChrome></Guard></div>;
    })}
  </div>;
}
async function start() {
  try { await initPluginTranslations('grafana', []); } catch (e) { console.log('i18n', e); }

  const root = createRoot(document.getElementById('root'));
  root.render(<ThemeContext.Provider value={theme}><GlobalStyles /><Board /></ThemeContext.Provider>);
}
start();
