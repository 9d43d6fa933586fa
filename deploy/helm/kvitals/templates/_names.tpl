{{- define "kvitals.name" -}}
{{- $own := printf "%s-%s" .Release.Name .Chart.Name -}}
{{- contains .Chart.Name .Release.Name | ternary .Release.Name $own | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- define "kvitals.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "kvitals.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kvitals.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Nobody's rights: what every container of ours runs with. */}}
{{- define "kvitals.unprivileged" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Of an environment: where the key of tenants' pseudonyms is. */}}
{{- define "kvitals.tenantKey" -}}
{{- with .Values.tenantKey }}
- name: KVITALS_TENANT_KEY_FILE
  value: /run/secrets/kvitals/{{ . }}
{{- end }}
{{- end }}

{{- define "kvitals.probes" -}}
livenessProbe:
  httpGet: {path: /-/healthy, port: {{ . }}}
  periodSeconds: 15
  timeoutSeconds: 3
  failureThreshold: 4
readinessProbe:
  httpGet: {path: /-/ready, port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 3
{{- end }}
