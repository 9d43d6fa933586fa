{{/*
The tap as a container: in the chart's own Deployment, or, with `include "kvitals.tap"` of a chart that has this one as a
dependency, as a sidecar in your engine's pod. There it wants the volumes kvitals-config (the chart's ConfigMap) and
kvitals-secret (the Secret, defaultMode 0440), and the pod's fsGroup 10001.
*/}}
{{- define "kvitals.tap" -}}
{{- if not (contains "parts_token_file" .Values.config) }}
{{- fail "tap: the agents take nothing from it without a token: say parts_token_file = \"/run/secrets/kvitals/parts-token\" in [agent] of config" }}
{{- end }}
name: kvitals-tap
image: {{ include "kvitals.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args:
  - tap
  - --config=/etc/kvitals/kvitals.toml
  - --upstream={{ required "tap.upstream: the URL of the engine or router behind the tap" .Values.tap.upstream }}
  - --agent=http://{{ include "kvitals.name" . }}-node.{{ .Release.Namespace }}.svc:9477
  - --token-file=/run/secrets/kvitals/{{ .Values.tap.tokenKey }}
  - --listen=0.0.0.0:8100
  - --admin=0.0.0.0:9478
  {{- if .Values.tap.router }}
  - --router
  {{- end }}
env:
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
{{- end }}
