{{/*
The tap as a container: in the chart's own Deployment, or, with `include "kvitals.tap"` of a chart that has this one as a
dependency, as a sidecar in your engine's pod. The pod must have fsGroup 10001 and the volumes kvitals-config (the chart's
ConfigMap), kvitals-secret (`secret`, defaultMode 0440) and kvitals-remote (token and ca.crt of the Secret that
remote.yaml makes or `remote.secret` names, defaultMode 0440).
*/}}
{{- define "kvitals.tap" -}}
{{- if not .Values.remote.enabled }}
{{- fail "tap: the agents' API is on loopback in their pods: set remote.enabled=true" }}
{{- end }}
{{- if not (contains "parts_token_file = \"/run/secrets/kvitals-remote/token\"" .Values.config) }}
{{- fail "tap: the agents accept nothing from other pods without a token: set parts_token_file = \"/run/secrets/kvitals-remote/token\" in [agent] of config" }}
{{- end }}
name: kvitals-tap
image: {{ include "kvitals.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args:
  - tap
  - --config=/etc/kvitals/kvitals.toml
  - --upstream={{ required "tap.upstream: the URL of the engine or router behind the tap" .Values.tap.upstream }}
  - --agent=https://{{ include "kvitals.name" . }}-node.{{ .Release.Namespace }}.svc:9443
  - --token-file=/run/secrets/kvitals-remote/token
  - --listen=0.0.0.0:8100
  - --admin=0.0.0.0:9478
  {{- if .Values.tap.router }}
  - --router
  {{- end }}
env:
  # OpenSSL reads it beside the system's own authorities, which an https upstream may need.
  - {name: SSL_CERT_FILE, value: /run/secrets/kvitals-remote/ca.crt}
  {{- include "kvitals.tenantKey" . | nindent 2 }}
ports:
  - {name: http, containerPort: 8100}
  - {name: metrics, containerPort: 9478}
readinessProbe:
  tcpSocket: {port: http}
lifecycle:
  # It takes no connection once it is told to end: until then nobody may be sent here any more.
  preStop: {exec: {command: [sleep, "5"]}}
resources: {{- toYaml .Values.tap.resources | nindent 2 }}
securityContext: {{- include "kvitals.unprivileged" . | nindent 2 }}
volumeMounts:
  - {name: kvitals-config, mountPath: /etc/kvitals, readOnly: true}
  - {name: kvitals-secret, mountPath: /run/secrets/kvitals, readOnly: true}
  - {name: kvitals-remote, mountPath: /run/secrets/kvitals-remote, readOnly: true}
{{- end }}
