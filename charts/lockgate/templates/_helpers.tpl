{{- define "lockgate.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "lockgate.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- /* What pods are known by: a part of the root and the component. */ -}}
{{- define "lockgate.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "lockgate.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}

{{- /* The chart's own lock nodes, as URLs; a pod keeps its name wherever it runs. */ -}}
{{- define "lockgate.nodes" -}}
{{- $name := include "lockgate.name" . }}
{{- $password := "" }}
{{- with .Values.nodes.passwordKey }}{{ $password = printf ":${%s}@" . }}{{ end }}
{{- range $node := until (int .Values.nodes.count) }}
- redis://{{ $password }}{{ $name }}-node-{{ $node }}-0.{{ $name }}-nodes.{{ $.Release.Namespace }}.svc:6379
{{- end }}
{{- end }}

{{- define "lockgate.config" -}}
{{- $_ := required "config.data: the Redis of your applications, as redis://:${REDIS_PASSWORD}@redis:6379" .Values.config.data }}
{{- $ours := dict "listen" "0.0.0.0:6380" "admin" "0.0.0.0:9380" }}
{{- /* It may have a token. */ -}}
{{- if kindIs "map" .Values.config.admin }}{{ $_ := set $ours "admin" (dict "listen" "0.0.0.0:9380") }}{{ end }}
{{- if .Values.nodes.enabled }}
{{- if not (has (int .Values.nodes.count) (list 1 3 5 7)) }}{{ fail "nodes.count: 1, 3, 5 or 7" }}{{ end }}
{{- $_ := set $ours "locks" (dict "nodes" (include "lockgate.nodes" . | fromYamlArray)) }}
{{- end }}
{{- toYaml (mergeOverwrite (deepCopy .Values.config) $ours) }}
{{- end }}

{{- /* The same for the proxies and for init. */ -}}
{{- define "lockgate.container" -}}
image: {{ include "lockgate.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- with .Values.secret }}
envFrom:
  - secretRef:
      name: {{ . }}
{{- end }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
volumeMounts:
  - name: config
    mountPath: /etc/lockgate
    readOnly: true
{{- end }}

{{- define "lockgate.pod" -}}
automountServiceAccountToken: false
# Other services' addresses are none of its environment.
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 6380
  runAsGroup: 6380
  seccompProfile:
    type: RuntimeDefault
volumes:
  - name: config
    configMap:
      name: {{ include "lockgate.name" . }}
{{- end }}
