{{/*
The tap as a container: in the chart's own Deployment, or, with `include "kvitals.tap"` of a chart that has this one as a
dependency, as a sidecar in your engine's pod (it wants the volume kvitals-config).
*/}}
{{- define "kvitals.tap" -}}
name: kvitals-tap
image: {{ include "kvitals.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args:
  - tap
  - --config=/etc/kvitals/kvitals.toml
  - --upstream={{ required "tap.upstream: the URL of the engine or router behind the tap" .Values.tap.upstream }}
  - --listen=0.0.0.0:8100
  - --admin=0.0.0.0:9478
  {{- if .Values.tap.router }}
  - --router
  {{- end }}
ports:
  - {name: http, containerPort: 8100}
  - {name: metrics, containerPort: 9478}
readinessProbe:
  tcpSocket: {port: http}
resources: {{- toYaml .Values.tap.resources | nindent 2 }}
securityContext: {{- include "kvitals.unprivileged" . | nindent 2 }}
volumeMounts:
  - {name: kvitals-config, mountPath: /etc/kvitals, readOnly: true}
{{- end }}
