// One dashboard with Grafana's own components: `window.dashboard` is its JSON, /api is a Prometheus, the address says the
// rest (theme, from, to, scrape, var-NAME). When all is drawn, `window.drawn` says what became of each panel.
import * as data from '@grafana/data';
import { initPluginTranslations } from '@grafana/i18n';
import { BarGauge, BigValue, ErrorBoundary, GlobalStyles, PanelChrome, TimeSeries, VizRepeater } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
import { type ReactNode } from 'react';
import { createRoot } from 'react-dom/client';
import { dashboard, filler, fillVariables, framesOfPanel, type Json, range, unsupported, variables, withFieldConfig } from './model';

const theme = data.createTheme({ colors: { mode: new URLSearchParams(location.search).get('theme') === 'light' ? 'light' : 'dark' } });
const GAP = 8;
const ROW = 30;
const EDGE = 16;

interface Drawn {
  panel: Json;
  state: 'data' | 'no value' | 'error' | 'not renderable';
  reason: string;
  values: string[];
  warnings: Set<string>;
  unknown: Set<string>;
  frames: data.DataFrame[];
}

function repeated(drawn: Drawn, width: number, height: number, draw: (value: data.FieldDisplay, one: Json) => ReactNode) {
  const { options = {}, fieldConfig = { defaults: {}, overrides: [] } } = drawn.panel;
  const reduceOptions = { values: false, calcs: ['lastNotNull'], fields: '', ...options.reduceOptions };
  const values = data.getFieldDisplayValues({
    fieldConfig, reduceOptions, replaceVariables: filler(drawn.unknown) as data.InterpolateFunction, theme, timeZone: 'utc', data: drawn.frames,
    sparkline: drawn.panel.type === 'stat' && (options.graphMode ?? 'area') !== 'none', percentChange: options.showPercentChange,
  });
  const orientation = options.orientation ?? 'auto';
  return (
    <VizRepeater
      getValues={() => values} getAlignmentFactors={() => data.getDisplayValueAlignmentFactors(values)}
      renderValue={(one) => draw(one.value as data.FieldDisplay, one) as any} source={values} renderCounter={0} width={width} height={height} itemSpacing={GAP}
      orientation={orientation} autoGrid={drawn.panel.type === 'stat'} minVizHeight={options.minVizHeight ?? 16} minVizWidth={options.minVizWidth ?? 8} maxVizHeight={options.maxVizHeight ?? 300}
    />
  );
}

const empty = ({ panel }: Drawn) => (
  <div style={{ display: 'grid', placeItems: 'center', height: '100%', color: theme.colors.text.secondary }}>{panel.fieldConfig?.defaults?.noValue ?? 'No data'}</div>
);

/** By panel type; timeseries, table and text show an absence themselves, stat and bargauge have it from @grafana/data. */
const kinds: Record<string, (drawn: Drawn, width: number, height: number) => ReactNode> = {
  timeseries: (drawn, width, height) =>
    drawn.state !== 'data' ? empty(drawn) : (
      <TimeSeries
        // As Grafana's panel does it; the component by itself leaves gaps in the first series alone.
        frames={drawn.frames.map((frame) => data.applyNullInsertThreshold({ frame }))} structureRev={1} width={width} height={height} timeRange={range} timeZone="utc" options={{}}
        legend={{ showLegend: true, displayMode: 'list', placement: 'bottom', calcs: [], ...drawn.panel.options?.legend }}
      />
    ),
  stat: (drawn, width, height) =>
    repeated(drawn, width, height, (value, one) => {
      const { colorMode = 'value', graphMode = 'area', justifyMode = 'auto', textMode = 'auto', text, wideLayout = true } = drawn.panel.options ?? {};
      return (
        <BigValue
          value={value.display} sparkline={value.sparkline} width={one.width} height={one.height} theme={theme} count={one.count} colorMode={colorMode} graphMode={graphMode}
          justifyMode={justifyMode} textMode={textMode} text={text} alignmentFactors={one.alignmentFactors} disableWideLayout={!wideLayout}
        />
      );
    }),
  bargauge: (drawn, width, height) =>
    repeated(drawn, width, height, (value, one) => {
      const { displayMode = 'gradient', valueMode = 'color', namePlacement = 'auto', showUnfilled = true, text } = drawn.panel.options ?? {};
      return (
        <BarGauge
          value={value.display} field={value.field} display={value.view?.getFieldDisplayProcessor(value.colIndex!)} width={one.width} height={one.height} orientation={one.orientation} theme={theme}
          displayMode={displayMode} valueDisplayMode={valueMode} namePlacement={namePlacement} showUnfilled={showUnfilled} text={text} itemSpacing={GAP} alignmentFactors={one.alignmentFactors}
        />
      );
    }),
  table: (drawn, width, height) => {
    const { showHeader = true, cellHeight = 'sm', sortBy = [], frameIndex = 0, frozenColumns } = drawn.panel.options ?? {};
    return drawn.state !== 'data' ? empty(drawn) : (
      <TableNG
        data={drawn.frames[frameIndex] ?? drawn.frames[0]} width={width} height={height} noHeader={!showHeader} cellHeight={cellHeight} sortBy={sortBy} structureRev={1} timeRange={range}
        noValue={drawn.panel.fieldConfig?.defaults?.noValue} fieldConfig={drawn.panel.fieldConfig} frozenColumns={frozenColumns?.left} disableKeyboardEvents
      />
    );
  },
  text: ({ panel, unknown }) => {
    const { mode = 'markdown', content = '' } = panel.options ?? {};
    const html = mode === 'markdown' ? data.renderTextPanelMarkdown(filler(unknown)(content)) : data.textUtil.sanitizeTextPanelContent(filler(unknown)(content));
    return <div className="markdown-html" style={{ height: '100%', overflow: 'auto' }} dangerouslySetInnerHTML={{ __html: html }} />;
  },
};

function fail(drawn: Drawn, error: unknown): void {
  [drawn.state, drawn.reason, drawn.frames] = ['error', error instanceof Error ? error.message : String(error), []];
}

async function prepared(panel: Json, width: number): Promise<Drawn> {
  const drawn: Drawn = { panel, state: 'data', reason: '', values: [], warnings: new Set(), unknown: new Set(), frames: [] };
  drawn.reason = unsupported(panel, [...Object.keys(kinds), 'row']);
  if (drawn.reason) return { ...drawn, state: 'not renderable' };
  if (panel.type === 'row' || panel.type === 'text') return drawn;
  try {
    const frames = await framesOfPanel(panel, width, drawn.unknown, drawn.warnings);
    drawn.frames = withFieldConfig(panel, frames, theme, filler(drawn.unknown));
    const fields = drawn.frames.flatMap((frame) => frame.fields.map((field) => ({ frame, field }))).filter(({ field }) => field.type !== data.FieldType.time);
    const there = (value: unknown) => value !== null && value !== undefined && !Number.isNaN(value);
    if (!fields.some(({ field }) => field.values.some(there))) drawn.state = 'no value';
    if (panel.type === 'table' && drawn.frames.length > 1) drawn.warnings.add(`a table shows one of the ${drawn.frames.length} frames that it got`);
    drawn.values = fields.filter(({ field }) => field.type === data.FieldType.number).map(({ frame, field }) => {
      const last = field.values.filter(there).at(-1);
      return `${data.getFieldDisplayName(field, frame, drawn.frames)}: ${data.formattedValueToString(field.display!(last ?? null))}`;
    });
  } catch (error) {
    fail(drawn, error);
  }
  return drawn;
}

function Panel({ drawn, width, height }: { drawn: Drawn; width: number; height: number }) {
  const { panel, state, reason, unknown } = drawn;
  const title = filler(unknown)(panel.title ?? '');
  if (panel.type === 'row') return <h4 style={{ margin: 0, lineHeight: `${ROW}px` }}>⌄ {title}</h4>;
  const broken = (text: string) => <div style={{ color: theme.colors.error.text, overflow: 'auto', height: '100%' }}>{text}</div>;
  return (
    <PanelChrome title={title} description={panel.description && (() => data.renderMarkdown(filler(unknown)(panel.description)))} width={width} height={height} padding={panel.type === 'table' ? 'none' : 'md'} statusMessage={state === 'error' ? reason : undefined} displayMode={panel.transparent ? 'transparent' : 'default'}>
      {(innerWidth, innerHeight) => (
        <ErrorBoundary onError={(error) => fail(drawn, error)}>
          {({ error }) => (error ? broken(error.message) : reason ? broken(reason) : kinds[panel.type](drawn, innerWidth, innerHeight))}
        </ErrorBoundary>
      )}
    </PanelChrome>
  );
}

/** Rows folded in the JSON are drawn open, and what follows them moves down. */
function opened(panels: Json[]): Json[] {
  let down = 0;
  return panels.flatMap((panel) => {
    const moved = { ...panel, gridPos: { ...panel.gridPos, y: panel.gridPos.y + down } };
    if (panel.type !== 'row' || !panel.collapsed || !panel.panels?.length) return [moved];
    const inner: Json[] = panel.panels.map((one: Json) => ({ ...one, gridPos: { ...one.gridPos, y: one.gridPos.y + down } }));
    down += Math.max(...inner.map(({ gridPos }) => gridPos.y + gridPos.h)) - moved.gridPos.y - 1;
    return [moved, ...inner];
  });
}

async function main() {
  const problems = new Set<string>();
  await initPluginTranslations('gpuwatch');
  await fillVariables(problems).catch((error) => problems.add(`variables: ${error.message}`));
  const cell = (window.innerWidth - 2 * EDGE - 23 * GAP) / 24;
  const size = ({ w, h }: Json) => ({ width: w * (cell + GAP) - GAP, height: h * (ROW + GAP) - GAP });
  const all = await Promise.all(opened(dashboard.panels ?? []).map((panel) => prepared(panel, Math.round(size(panel.gridPos).width))));
  const bottom = Math.max(0, ...all.map(({ panel }) => (panel.gridPos.y + panel.gridPos.h) * (ROW + GAP)));
  const shown = (dashboard.templating?.list ?? []).filter((one: Json) => !one.hide || one.hide === 'dontHide').map((one: Json) => [one.label || one.name, one.includeAll && variables[one.name] === (one.allValue ?? '.*') ? 'All' : variables[one.name]]);
  const root = createRoot(document.getElementById('root')!);
  const themed = (inner: ReactNode) => root.render(<data.ThemeContext.Provider value={theme}><GlobalStyles />{inner}</data.ThemeContext.Provider>);
  themed(null);
  await new Promise((styled) => setTimeout(styled, 50));
  await Promise.all(['400 12px Inter', '500 12px Inter'].map((font) => document.fonts.load(font))); // a canvas does not wait for its font
  themed(
    <div style={{ padding: EDGE, background: theme.colors.background.canvas }}>
      <h2 style={{ margin: 0 }}>{dashboard.title}</h2>
      <div style={{ display: 'flex', gap: 2 * GAP, margin: `${GAP}px 0 ${2 * GAP}px`, color: theme.colors.text.secondary }}>{shown.map(([name, value]: string[]) => <span key={name}>{name} <b style={{ color: theme.colors.text.primary }}>{value}</b></span>)}</div>
      <div style={{ position: 'relative', height: bottom }}>
        {all.map((drawn, at) => (
          <div key={at} data-panel={at} style={{ position: 'absolute', left: drawn.panel.gridPos.x * (cell + GAP), top: drawn.panel.gridPos.y * (ROW + GAP), ...size(drawn.panel.gridPos) }}>
            <Panel drawn={drawn} {...size(drawn.panel.gridPos)} />
          </div>
        ))}
      </div>
    </div>
  );
  await document.fonts.ready;
  setTimeout(() => {
    const panels = all.map(({ panel, state, reason, values, warnings, unknown }) => ({ title: panel.title ?? '', kind: panel.type, state, reason, values, warnings: [...warnings], unknown: [...unknown] }));
    (window as any).drawn = { title: dashboard.title, variables, problems: [...problems], panels };
  }, 500);
}

main().catch((error) => ((window as any).drawn = { problems: [String(error?.stack ?? error)], panels: [], variables, title: dashboard.title }));
