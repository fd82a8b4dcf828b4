// From a dashboard's JSON to data frames: variables, queries and transformations; field configuration for @grafana/data.
import * as data from '@grafana/data';

export type Json = Record<string, any>;
const url = new URLSearchParams(location.search);
export const dashboard = (window as any).dashboard as Json;
export const range = data.rangeUtil.convertRawToRange(
  url.has('from')
    ? { from: data.dateTime(Number(url.get('from'))), to: data.dateTime(Number(url.get('to'))) }
    : dashboard.time ?? { from: 'now-24h', to: 'now' },
  'utc'
);
const scrape = url.get('scrape') ?? '30s';
export const variables: Record<string, string> = {};
data.standardTransformersRegistry.setInit(() =>
  [...new Set(Object.values(data.standardTransformers))].map((one: any) => ({ ...one, transformation: async () => one }))
);
data.locationUtil.initialize({ config: { appSubUrl: '' }, getVariablesUrlParams: () => ({}), getTimeRangeForUrl: () => range.raw } as any);

/** What a panel asked for that is not there; undefined names stay in the text as they are, as in Grafana. */
export type Fill = (text: string, scoped?: Json, format?: unknown) => string;
export function filler(unknown: Set<string>, own: Record<string, string> = {}): Fill {
  const known = (name: string, format: string | undefined, scoped: Json): string | undefined => {
    const context = scoped.__dataContext?.value;
    const field = name.match(/^__data\.fields(?:\.(.+)|\["?(.+?)"?\])$/);
    if (field && context) {
      const wanted = field[1] ?? field[2];
      const found = context.frame.fields.find(
        (one: data.Field, at: number) => data.getFieldDisplayName(one, context.frame) === wanted || one.name === wanted || String(at) === wanted
      );
      return found && String(found.values[context.rowIndex ?? 0]);
    }
    if (name.startsWith('__field.labels.') && context) return context.field.labels?.[name.slice(15)] ?? '';
    if (/^__(field|series)\.(display)?[nN]ame$/.test(name) && context) return data.getFieldDisplayName(context.field, context.frame);
    if (name.startsWith('__value.') && context) return String(context.field.values[context.rowIndex ?? 0]);
    if (name === '__all_variables') return Object.entries(variables).map(([key, is]) => `var-${key}=${encodeURIComponent(is)}`).join('&');
    if (name === '__url_time_range') return `from=${range.from.valueOf()}&to=${range.to.valueOf()}`;
    const value = own[name] ?? variables[name];
    return value !== undefined && format === 'queryparam' ? `var-${name}=${encodeURIComponent(value)}` : value;
  };
  return (text, scoped = {}) =>
    text.replace(/\$\{([^}]+)\}|\[\[(\w+)\]\]|\$([A-Za-z_]\w*)/g, (whole, braced, bracketed, bare) => {
      const [, name, format] = (braced ?? bracketed ?? bare).match(/^(.+?)(?::(\w+))?$/);
      const value = known(name, format, scoped);
      if (value === undefined) unknown.add(whole);
      return value ?? whole;
    });
}

async function ask(path: string, parameters: Json): Promise<Json> {
  const answer = await (await fetch(`/api/v1/${path}?${new URLSearchParams(parameters)}`)).json();
  if (answer.status !== 'success') throw new Error(answer.error ?? 'no answer');
  return answer;
}

/** Every variable: what the address says, else All (`allValue` or `.*`), else the first of what it may be. */
export async function fillVariables(unknown: Set<string>): Promise<void> {
  const span = (range.to.valueOf() - range.from.valueOf()) / 1000;
  Object.assign(variables, { __range: `${span}s`, __range_s: `${span}`, __range_ms: `${span * 1000}`, __from: `${range.from.valueOf()}`, __to: `${range.to.valueOf()}`, __dashboard: dashboard.title, __interval: '1m', __rate_interval: '5m' });
  const fill = filler(unknown);
  for (const one of dashboard.templating?.list ?? []) {
    const current = [one.current?.value].flat().find((value: unknown) => value && value !== '$__all');
    let value: string | undefined = url.get(`var-${one.name}`) ?? (one.type === 'datasource' ? 'prometheus' : one.includeAll ? one.allValue ?? '.*' : current);
    const text = fill(typeof one.query === 'string' ? one.query : one.query?.query ?? one.definition ?? '');
    if (value === undefined && one.type === 'query') {
      const [, series, label] = text.match(/^label_values\((.+),\s*(\w+)\s*\)$/) ?? [];
      if (label) value = (await ask(`label/${label}/values`, { 'match[]': series, start: range.from.unix(), end: range.to.unix() })).data[0];
    }
    variables[one.name] = value ?? text.split(',')[0].trim();
  }
}

function named(target: Json, labels: Record<string, string>): Json {
  const legend: string = target.legendFormat ?? '';
  const { __name__: metric = '', ...others } = labels;
  const all = `${metric}{${Object.entries(others).map(([key, value]) => `${key}="${value}"`).join(', ')}}`;
  if (legend === '__auto') return {};
  if (!legend && !Object.keys(labels).length) return { displayNameFromDS: target.expr };
  return { displayNameFromDS: legend ? legend.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => labels[label] ?? '') : all };
}

const number = (text: string) => (/Inf/.test(text) ? (text.startsWith('-') ? -Infinity : Infinity) : Number(text));
const column = (name: string, type: data.FieldType, values: unknown[], more: Json = {}) => ({ name, type, values, config: {}, ...more }) as data.Field;

/** One target's frames, in the shape that Grafana gives Prometheus' answers: a frame for each series, or one table. */
async function framesOf(target: Json, panel: Json, width: number, many: boolean, fill: (own: Json) => Fill, warnings: Set<string>): Promise<data.DataFrame[]> {
  const low = target.interval || panel.interval || scrape;
  const span = range.to.valueOf() - range.from.valueOf();
  const step = Math.max(data.rangeUtil.calculateInterval(range, panel.maxDataPoints ?? Math.max(width, 100), low).intervalMs, span / 11000) / 1000;
  const rate = Math.max(step + data.rangeUtil.intervalToSeconds(scrape), 4 * data.rangeUtil.intervalToSeconds(scrape));
  const query = fill({ __interval: `${step}s`, __interval_ms: `${step * 1000}`, __rate_interval: `${rate}s` })(target.expr);
  const frames: data.DataFrame[] = [];
  for (const kind of [...(target.instant ? ['query'] : []), ...(target.range || !target.instant ? ['query_range'] : [])]) {
    const end = range.to.valueOf() / 1000;
    const times = kind === 'query' ? { time: end } : { start: Math.floor((end - span / 1000) / step) * step, end: Math.floor(end / step) * step, step };
    const answer = await ask(kind, { query, ...times });
    [...(answer.warnings ?? []), ...(answer.infos ?? [])].forEach((text: string) => warnings.add(text));
    const { resultType, result } = answer.data;
    const series: Json[] = resultType === 'scalar' ? [{ metric: {}, value: result }] : result;
    const samples = (one: Json): [number, string][] => one.values ?? [one.value];
    if (target.format === 'table') {
      const rows = series.flatMap((one) => samples(one).map(([at, value]) => ({ at: at * 1000, value: number(value), labels: one.metric })));
      const labels = [...new Set(series.flatMap((one) => Object.keys(one.metric)))].sort();
      const fields = [
        column('Time', data.FieldType.time, rows.map((row) => row.at)),
        ...labels.map((label) => column(label, data.FieldType.string, rows.map((row) => row.labels[label] ?? ''), { config: { filterable: true } })),
        column(many ? `Value #${target.refId}` : 'Value', data.FieldType.number, rows.map((row) => row.value)),
      ];
      if (rows.length) frames.push({ refId: target.refId, meta: { preferredVisualisationType: 'table' }, fields, length: rows.length });
    } else {
      for (const one of series) {
        const config = named(target, one.metric);
        const interval = kind === 'query' ? {} : { interval: step * 1000 };
        const fields = [
          column('Time', data.FieldType.time, samples(one).map(([at]) => at * 1000), { config: interval }),
          column('Value', data.FieldType.number, samples(one).map(([, value]) => number(value)), { labels: one.metric, config }),
        ];
        frames.push({ refId: target.refId, name: config.displayNameFromDS, fields, length: samples(one).length });
      }
    }
  }
  return frames;
}

/** The queries' frames after the panel's transformations, all by Grafana's own code. */
export async function framesOfPanel(panel: Json, width: number, unknown: Set<string>, warnings: Set<string>): Promise<data.DataFrame[]> {
  const targets = (panel.targets ?? []).filter((target: Json) => !target.hide && target.expr);
  const many = targets.filter((target: Json) => target.format === 'table').length > 1;
  const fill = (own: Json) => filler(unknown, own);
  const frames = (await Promise.all(targets.map((target: Json) => framesOf(target, panel, width, many, fill, warnings)))).flat();
  return new Promise((done, failed) =>
    data.transformDataFrame(panel.transformations ?? [], frames, { interpolate: filler(unknown) }).subscribe({ next: done, error: failed })
  );
}

/** What of the panel's JSON would not be drawn; empty where all of it would. */
export function unsupported(panel: Json, types: string[]): string {
  if (!types.includes(panel.type)) return `no component for panels of type ${panel.type}`;
  if (panel.repeat) return 'repeated panels are not drawn';
  const odd = (panel.transformations ?? []).find((one: Json) => !data.standardTransformersRegistry.getIfExists(one.id));
  if (odd) return `@grafana/data has no transformation ${odd.id}`;
  const other = [panel, ...(panel.targets ?? [])].map((one: Json) => one.datasource?.uid ?? '').find((uid) => /^(-- |__expr__)/.test(uid));
  return other ? `datasource ${other} is Grafana's own` : '';
}

/** What Grafana fills in for each panel type, and what @grafana/data knows how to override. */
export function withFieldConfig(panel: Json, frames: data.DataFrame[], theme: data.GrafanaTheme2, fill: Fill): data.DataFrame[] {
  const { defaults = {}, overrides = [] } = panel.fieldConfig ?? {};
  const steps = (value: Json) => ({ ...value, steps: value.steps.map((one: Json) => ({ ...one, value: one.value ?? -Infinity })) });
  const same = (value: unknown) => value;
  const process: Json = {
    unit: data.unitOverrideProcessor, min: data.numberOverrideProcessor, max: data.numberOverrideProcessor, decimals: data.numberOverrideProcessor,
    displayName: data.displayNameOverrideProcessor, noValue: data.stringOverrideProcessor, mappings: data.valueMappingsOverrideProcessor,
    thresholds: (value: Json) => value && steps(value), links: data.dataLinksOverrideProcessor, color: same, description: same, filterable: same, fieldMinMax: same,
  };
  const custom = [defaults.custom ?? {}, ...overrides.map((one: Json) => Object.fromEntries(one.properties.filter((p: Json) => p.id.startsWith('custom.')).map((p: Json) => [p.id.slice(7), 0])))].flatMap(Object.keys);
  const items = [...Object.keys(process).map((id) => ({ id, path: id })), ...[...new Set(custom)].map((path) => ({ id: `custom.${path}`, path, isCustom: true }))];
  const registry = new data.FieldConfigOptionsRegistry(() =>
    items.map((one) => ({
      ...one, name: one.id, process: process[one.id] ?? same, override: same, editor: same, settings: { expandTemplateVars: true },
      shouldApply: (field: data.Field) => !['min', 'max', 'decimals'].includes(one.id) || field.type === data.FieldType.number,
    })) as any
  );
  const odd = overrides.flatMap((one: Json) => one.properties).find((one: Json) => !registry.getIfExists(one.id));
  if (odd) throw new Error(`an override of ${odd.id}, which is no property of a field`);
  const usual = {
    thresholds: { mode: 'absolute', steps: [{ value: -Infinity, color: 'green' }, { value: 80, color: 'red' }] },
    color: { mode: panel.type === 'timeseries' ? 'palette-classic' : 'thresholds' },
  };
  const fieldConfig = { defaults: { ...usual, ...defaults }, overrides } as data.FieldConfigSource;
  const done = data.applyFieldOverrides({ data: frames, fieldConfig, fieldConfigRegistry: registry, replaceVariables: fill as data.InterpolateFunction, theme, timeZone: 'utc' });
  data.cacheFieldDisplayNames(done); // a table finds its cells by these
  return done;
}
