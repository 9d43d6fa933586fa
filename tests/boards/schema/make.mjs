// JSON schemas from the types that Grafana publishes (npm: @grafana/schema), as one file:
//   npm install --no-save @grafana/schema@13.2.3 ts-json-schema-generator@2 && node make.mjs > grafana-13.2.3.json
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createGenerator } from 'ts-json-schema-generator';

const KINDS = { bargauge: 0, heatmap: 1, stat: 0, statetimeline: 1, table: 1, text: 0, timeseries: 1 }; // 1: has fields of its own
const package_ = './node_modules/@grafana/schema';
const version = JSON.parse(readFileSync(`${package_}/package.json`)).version;
const folder = mkdtempSync('./types-');

function schema(from, type) {
  const path = join(folder, `${from.replaceAll('/', '-')}-${type}.ts`);
  writeFileSync(path, `import { ${type} as Theirs } from '.${package_}/dist/types/${from}';\nexport type Wanted = Theirs;\n`);
  const made = createGenerator({ path, type: 'Wanted', skipTypeCheck: true, topRef: false }).createSchema('Wanted');
  const withoutProse = (key, value) => (key === 'description' && typeof value === 'string' ? undefined : value);
  return JSON.parse(JSON.stringify(made, withoutProse));
}

const panels = Object.fromEntries(
  Object.entries(KINDS).map(([kind, own]) => [
    kind,
    {
      options: schema(`raw/composable/${kind}/panelcfg/x/types.gen`, 'Options'),
      ...(own ? { custom: schema(`raw/composable/${kind}/panelcfg/x/types.gen`, 'FieldConfig') } : {}),
    },
  ]),
);
const origin = `made from the types of @grafana/schema ${version} (npm, Apache-2.0, Grafana Labs)`;
const dashboard = 'raw/dashboard/x/types.gen';
const made = {
  origin,
  board: schema(dashboard, 'Dashboard'),
  panel: schema(dashboard, 'Panel'),
  row: schema(dashboard, 'RowPanel'),
  annotation: schema(dashboard, 'AnnotationQuery'),
  panels,
};
process.stdout.write(`${JSON.stringify(made)}\n`);
rmSync(folder, { recursive: true });
