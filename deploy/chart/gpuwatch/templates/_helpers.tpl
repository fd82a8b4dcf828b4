{{/*
Values that `helm upgrade --reuse-values` took from an older chart lack what came since. This puts the defaults in their
places; each template calls it first. What is a Kubernetes object as a whole is taken or left as a whole.
*/}}
{{- define "gpuwatch.defaults" -}}
{{- include "gpuwatch.fill" (dict "into" .Values "from" (.Files.Get "files/defaults.yaml" | fromYaml)) -}}
{{- end }}

{{- define "gpuwatch.fill" -}}
{{- $whole := list "resources" "podSecurityContext" "securityContext" "startupProbe" "livenessProbe" "readinessProbe" "updateStrategy" "instanceSelector" -}}
{{- $into := .into -}}
{{- range $key, $default := .from -}}
{{- if not (hasKey $into $key) -}}
{{- $_ := set $into $key $default -}}
{{- else if and (kindIs "map" $default) (kindIs "map" (get $into $key)) (not (has $key $whole)) -}}
{{- include "gpuwatch.fill" (dict "into" (get $into $key) "from" $default) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Names */}}
{{- define "gpuwatch.name" -}}
{{- default "gpuwatch" .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{- define "gpuwatch.fullname" -}}
{{- $name := include "gpuwatch.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "gpuwatch.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end }}

{{- define "gpuwatch.account" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "gpuwatch.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.create is false: name gpuwatch's ServiceAccount in serviceAccount.name" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{- define "gpuwatch.settingsMap" -}}
{{- default (printf "%s-settings" (include "gpuwatch.fullname" .)) .Values.existingConfigMap -}}
{{- end }}

{{- define "gpuwatch.image" -}}
{{- $image := .Values.image -}}
{{- $place := list $image.registry $image.repository | compact | join "/" -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $place $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $place (default .Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end }}

{{/* Labels. `component` is controller, report, rules, dashboards or hook. */}}
{{- define "gpuwatch.selector" -}}
app.kubernetes.io/name: {{ include "gpuwatch.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "gpuwatch.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{ include "gpuwatch.selector" . }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* metadata: of `name`, in `namespace`, with `labels` and `annotations` beside everybody's; `cluster: true` is of no Namespace. */}}
{{- define "gpuwatch.metadata" -}}
{{- $labels := mustMerge (dict) (default dict .labels) (include "gpuwatch.labels" (dict "root" .root "component" (default "controller" .component)) | fromYaml) -}}
{{- $annotations := mustMerge (dict) (default dict .annotations) .root.Values.commonAnnotations -}}
name: {{ .name }}
{{- if not .cluster }}
namespace: {{ default (include "gpuwatch.namespace" .root) .namespace }}
{{- end }}
labels:
  {{- toYaml $labels | nindent 2 }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
The objects of a file that is shipped for `kubectl apply` too, under the release's names: deploy/ is the one source of
them. `keepNames`: under their own, as there is one set in a cluster; `prefix`: under this one for gpuwatch. The account's name and Namespace are put into bindings.
*/}}
{{- define "gpuwatch.objects" -}}
{{- $root := .root -}}
{{- $full := default (include "gpuwatch.fullname" $root) .prefix -}}
{{- $given := . -}}
{{- range splitList "\n---\n" ($root.Files.Get .file) }}
{{- $object := fromYaml . -}}
{{- $metadata := $object.metadata -}}
{{- $name := (default false $given.keepNames) | ternary $metadata.name (regexReplaceAll "^gpuwatch" $metadata.name $full) -}}
{{- $made := dict "root" $root "name" $name "labels" $metadata.labels "cluster" (not $metadata.namespace) "component" $given.component "annotations" $given.annotations -}}
{{- $_ := set $object "metadata" (include "gpuwatch.metadata" $made | fromYaml) -}}
{{- with $object.roleRef -}}
{{- $_ := set . "name" (regexReplaceAll "^gpuwatch" .name $full) -}}
{{- end -}}
{{- range $object.subjects -}}
{{- $_ := set . "name" (include "gpuwatch.account" $root) -}}
{{- $_ := set . "namespace" (include "gpuwatch.namespace" $root) -}}
{{- end }}
---
{{ toYaml $object }}
{{- end }}
{{- end }}

{{/* The roles that are bound: of suggest, taint, evict, makeRoom, release. */}}
{{- define "gpuwatch.roles" -}}
{{- $roles := .Values.rbac.roles -}}
{{- if ne .Values.mode "observe" -}}
{{- $roles = append $roles "suggest" -}}
{{- end -}}
{{- if eq .Values.mode "enforce" -}}
{{- if not (or .Values.enforce.taint .Values.enforce.evict .Values.enforce.makeRoom .Values.enforce.release) -}}
{{- fail "mode is enforce, and nothing is to be enforced: set enforce.taint, enforce.evict, enforce.makeRoom or enforce.release to true, or mode: suggest" -}}
{{- end -}}
{{- range $kind := list "taint" "evict" "makeRoom" "release" -}}
{{- if get $.Values.enforce $kind -}}
{{- $roles = append $roles $kind -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $roles | uniq | sortAlpha | join "," -}}
{{- end }}

{{/* settings.yaml, from `settings`, `prometheus`, `mode`, `persistence` and `report`. */}}
{{- define "gpuwatch.settings" -}}
{{- $settings := deepCopy .Values.settings -}}
{{- $connection := default dict $settings.prometheus -}}
{{- $_ := set $connection "url" (include "gpuwatch.prometheusUrl" .) -}}
{{- with .Values.prometheus.bearerTokenSecret -}}
{{- if .name -}}{{- $_ := set $connection "bearer_token_file" (printf "/etc/gpuwatch-prometheus/token/%s" .key) -}}{{- end -}}
{{- end -}}
{{- with .Values.prometheus.caSecret -}}
{{- if .name -}}{{- $_ := set $connection "ca_file" (printf "/etc/gpuwatch-prometheus/ca/%s" .key) -}}{{- end -}}
{{- end -}}
{{- with .Values.prometheus.headers -}}
{{- $_ := set $connection "headers" . -}}
{{- end -}}
{{- $_ := set $settings "prometheus" $connection -}}
{{- $plan := default dict $settings.plan -}}
{{- $modes := dict -}}
{{- $rolesBound := splitList "," (include "gpuwatch.roles" .) -}}
{{- $mildest := eq .Values.mode "observe" | ternary "observe" "suggest" -}}
{{- range $role, $kind := dict "taint" "taint_node" "evict" "evict_gang" "makeRoom" "make_room" "release" "release_gang" -}}
{{- $enforced := and (eq $.Values.mode "enforce") (get $.Values.enforce $role) -}}
{{- $_ := set $modes $kind ($enforced | ternary "enforce" $mildest) -}}
{{- range $scope := $plan.scopes -}}
{{- if has (default $kind $scope.action) (list $kind) -}}
{{- $needed := eq $scope.mode "enforce" | ternary $role "suggest" -}}
{{- if and $.Values.rbac.create (ne $scope.mode "observe") (not (has $needed $rolesBound)) -}}
{{- fail (printf "settings.plan.scopes has a scope with mode %s of %s, and the role for it is not bound: add %s to rbac.roles, or set mode and enforce" $scope.mode $kind $needed) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $_ := set $plan "modes" $modes -}}
{{- $_ := set $settings "plan" $plan -}}
{{- if and .Values.persistence.enabled (not $settings.state) -}}
{{- $_ := set $settings "state" "/var/lib/gpuwatch/gpuwatch.state" -}}
{{- end -}}
{{- if .Values.report.enabled -}}
{{- $run := default dict $settings.run -}}
{{- if not (hasKey $run "report_schedule") -}}
{{- $_ := set $run "report_schedule" "" -}}
{{- end -}}
{{- $_ := set $settings "run" $run -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end }}

{{/* The Prometheus that is given, else the only one that the cluster has. */}}
{{- define "gpuwatch.prometheusUrl" -}}
{{- if .Values.prometheus.url -}}
{{- .Values.prometheus.url -}}
{{- else -}}
{{- $found := dict -}}
{{- range $service := (lookup "v1" "Service" "" "").items -}}
{{- $name := $service.metadata.name -}}
{{- $labels := default dict $service.metadata.labels -}}
{{- $app := get $labels "app.kubernetes.io/name" -}}
{{- $component := get $labels "app.kubernetes.io/component" -}}
{{- $known := or (eq $name "prometheus-operated") (and (eq $app "prometheus") (eq $component "server")) (eq $app "vmsingle") (and (has $app (list "thanos" "thanos-query")) (has $component (list "query" "query-layer" "query-frontend"))) -}}
{{- if $known -}}
{{- range $port := $service.spec.ports -}}
{{- if has (default "http" $port.name) (list "web" "http-web" "http" "https-web") -}}
{{- $_ := set $found (printf "%s://%s.%s.svc:%v" (hasPrefix "https" (default "" $port.name) | ternary "https" "http") $name $service.metadata.namespace $port.port) $service.metadata.namespace -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $urls := keys $found | sortAlpha -}}
{{- /* An upgrade keeps the one that was found before. */ -}}
{{- $before := dig "data" "settings.yaml" "" (lookup "v1" "ConfigMap" (include "gpuwatch.namespace" .) (include "gpuwatch.settingsMap" .)) | fromYaml -}}
{{- with dig "prometheus" "url" "" $before -}}
{{- $urls = list . -}}
{{- end -}}
{{- if eq (len $urls) 1 -}}
{{- first $urls -}}
{{- else if $urls -}}
{{- fail (printf "prometheus.url is not set, and the cluster has several Services of a Prometheus. Choose the one that has the GPUs' telemetry:\n  --set prometheus.url=%s" (join "\n  --set prometheus.url=" $urls)) -}}
{{- else -}}
{{- fail (include "gpuwatch.noPrometheus" .) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "gpuwatch.noPrometheus" -}}
prometheus.url is not set, and no Service of a Prometheus was found (`helm template` and a client-side dry run cannot look for one). Set it to the one that has the GPUs' telemetry:
  kubectl get services -A | grep -Ei 'prometheus|thanos|mimir|vmsingle|vmselect'
  kube-prometheus, kube-prometheus-stack   --set prometheus.url=http://prometheus-operated.NAMESPACE.svc:9090
  the chart prometheus                     --set prometheus.url=http://prometheus-server.NAMESPACE.svc
  Thanos Query                             --set prometheus.url=http://thanos-query.NAMESPACE.svc:9090
  VictoriaMetrics cluster                  --set prometheus.url=http://vmselect.NAMESPACE.svc:8481/select/0/prometheus
  Mimir                                    --set prometheus.url=http://mimir-nginx.NAMESPACE.svc/prometheus --set prometheus.headers.X-Scope-OrgID=TENANT
{{- end }}

{{/* Labels and annotations of Pods of a component. */}}
{{- define "gpuwatch.podMetadata" -}}
labels:
  {{- include "gpuwatch.selector" . | nindent 2 }}
  {{- with mustMerge (dict) .root.Values.podLabels .root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with mustMerge (dict) .root.Values.podAnnotations .root.Values.commonAnnotations (default dict .annotations) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What all Pods share: the Pod's own settings, one container's, its mounts, its volumes. */}}
{{- define "gpuwatch.pod" -}}
serviceAccountName: {{ default (include "gpuwatch.account" .root) .account }}
enableServiceLinks: false # no Service of the Namespace sets a variable
{{- with .root.Values }}
{{- range $field := list "imagePullSecrets" "priorityClassName" "nodeSelector" "dnsConfig" }}
{{- with get $.root.Values $field }}
{{ $field }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- /* Where gpuwatch has tainted the Node, its Pods still run: one of them has to remove that taint. */}}
tolerations:
  {{- toYaml (append .tolerations (dict "key" "gpuwatch.dev/degraded" "operator" "Exists")) | nindent 2 }}
{{- with .podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .hostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
{{- end }}
{{- end }}

{{- define "gpuwatch.container" -}}
image: {{ include "gpuwatch.image" . }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- with .Values.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "gpuwatch.mounts" -}}
- name: settings
  mountPath: /etc/gpuwatch
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- if .Values.prometheus.bearerTokenSecret.name }}
- name: prometheus-token
  mountPath: /etc/gpuwatch-prometheus/token
  readOnly: true
{{- end }}
{{- if .Values.prometheus.caSecret.name }}
- name: prometheus-ca
  mountPath: /etc/gpuwatch-prometheus/ca
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "gpuwatch.volumes" -}}
- name: settings
  configMap:
    name: {{ include "gpuwatch.settingsMap" . }}
- name: tmp
  emptyDir: {}
{{- with .Values.prometheus.bearerTokenSecret.name }}
- name: prometheus-token
  secret:
    secretName: {{ . }}
{{- end }}
{{- with .Values.prometheus.caSecret.name }}
- name: prometheus-ca
  secret:
    secretName: {{ . }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "gpuwatch.claim" -}}
accessModes: [ReadWriteOnce]
{{- with .storageClass }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests:
    storage: {{ .size }}
{{- end }}

{{/* template of a Job, and spec of a Pod that ends: `container` is its name, `args` its command; `claim` is mounted at
/var/lib/gpuwatch. */}}
{{- define "gpuwatch.jobTemplate" -}}
metadata:
  {{- include "gpuwatch.podMetadata" . | nindent 2 }}
spec:
  {{- include "gpuwatch.jobPod" . | nindent 2 }}
{{- end }}

{{- define "gpuwatch.jobPod" -}}
{{ include "gpuwatch.pod" . }}
restartPolicy: Never
containers:
  - name: {{ .container }}
    {{- include "gpuwatch.container" .root | nindent 4 }}
    args:
      {{- toYaml .args | nindent 6 }}
    env:
      - name: POD_NAMESPACE
        valueFrom:
          fieldRef:
            fieldPath: metadata.namespace
      {{- with .root.Values.extraEnv }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    volumeMounts:
      {{- include "gpuwatch.mounts" .root | nindent 6 }}
      {{- if .claim }}
      - name: state
        mountPath: /var/lib/gpuwatch
      {{- end }}
volumes:
  {{- include "gpuwatch.volumes" .root | nindent 2 }}
  {{- with .claim }}
  - name: state
    persistentVolumeClaim:
      claimName: {{ . }}
  {{- end }}
{{- end }}
