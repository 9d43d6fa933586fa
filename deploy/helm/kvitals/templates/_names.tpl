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

{{/* The Secret of the agents' API for other pods: tls.crt, tls.key, ca.crt, token. */}}
{{- define "kvitals.remoteSecret" -}}
{{ .Values.remote.secret | default (printf "%s-remote" (include "kvitals.name" .)) }}
{{- end }}

{{/* A probe in the pod, since the API is on loopback, where the kubelet's httpGet does not get. The argument is the path. */}}
{{- define "kvitals.ask" -}}
exec:
  command:
    - python
    - -IS
    - -c
    - import urllib.request as u; u.urlopen("http://127.0.0.1:9477{{ . }}", timeout=4).read()
timeoutSeconds: 5
{{- end }}

{{/* Ready: there is a window to ask. Alive: the agent's cycle goes on; a minute without it restarts the container. */}}
{{- define "kvitals.probes" -}}
startupProbe:
  {{- include "kvitals.ask" "/-/healthy" | nindent 2 }}
  periodSeconds: 5
  failureThreshold: 24
readinessProbe:
  {{- include "kvitals.ask" "/-/ready" | nindent 2 }}
  periodSeconds: 15
livenessProbe:
  {{- include "kvitals.ask" "/-/healthy" | nindent 2 }}
  periodSeconds: 20
  failureThreshold: 3
{{- end }}
