// The page in one folder, and beside it the icons and fonts that Grafana's components fetch by their own addresses.
import { cpSync } from 'node:fs';
import { build } from 'esbuild';

await build({
  entryPoints: ['page.tsx'],
  outdir: 'built',
  bundle: true,
  splitting: true,
  minify: true,
  format: 'esm',
  jsx: 'automatic',
  target: 'es2022',
  logLevel: 'warning',
  define: { 'process.env.NODE_ENV': '"production"' },
  loader: { '.svg': 'dataurl', '.ttf': 'file' },
});
cpSync('index.html', 'built/index.html');
cpSync('node_modules/@grafana/ui/dist/public/img', 'built/public/build/img', { recursive: true });
const font = (name, weight, style, target) =>
  cpSync(`node_modules/@fontsource/${name}/files/${name}-latin-${weight}-${style}.woff2`, `built/public/fonts/${target}.woff2`);
font('inter', 400, 'normal', 'inter/Inter-Regular');
font('inter', 500, 'normal', 'inter/Inter-Medium');
font('inter', 400, 'italic', 'inter/Inter-Italic');
font('inter', 500, 'italic', 'inter/Inter-MediumItalic');
font('roboto-mono', 400, 'normal', 'roboto/L0xTDF4xlVMF-BfR8bXMIhJHg45mwgGEFl0_3vrtSM1J-gEPT5Ese6hmHSh0mQ');
