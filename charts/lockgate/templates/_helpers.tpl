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

{{- /* So many of the chart's own lock nodes, as URLs; a pod keeps its name wherever it runs. */ -}}
{{- define "lockgate.nodes" -}}
{{- $root := .root }}
{{- $name := include "lockgate.name" $root }}
{{- $password := "" }}
{{- with $root.Values.nodes.passwordKey }}{{ $password = printf ":${%s}@" . }}{{ end }}
{{- range $node := until (int .count) }}
- redis://{{ $password }}{{ $name }}-node-{{ $node }}-0.{{ $name }}-nodes.{{ $root.Release.Namespace }}.svc:6379
{{- end }}
{{- end }}

{{- /* A time of the configuration in whole seconds, of which a part counts as one. */ -}}
{{- define "lockgate.seconds" -}}
{{- $text := toString . }}
{{- if not (regexMatch "^[0-9]+(us|ms|s|m|h|d)$" $text) }}
{{- fail (printf "config.locks.max_ttl: %s must be written as 30s here, as nodes.waitSeconds is compared with it" $text) }}
{{- end }}
{{- $count := regexFind "^[0-9]+" $text | int64 }}
{{- $unit := regexFind "[a-z]+$" $text }}
{{- $parts := dict "us" 1000000 "ms" 1000 }}
{{- $whole := dict "s" 1 "m" 60 "h" 3600 "d" 86400 }}
{{- if hasKey $parts $unit }}{{ add1 (div $count (get $parts $unit)) }}
{{- else }}{{ mul $count (get $whole $unit) }}{{ end }}
{{- end }}

{{- define "lockgate.config" -}}
{{- $config := .Values.config }}
{{- $locks := $config.locks | default dict }}
{{- $nodes := .Values.nodes }}
{{- $_ := required "config.data: the Redis of your applications, as redis://:${REDIS_PASSWORD}@redis:6379" $config.data }}
{{- $ours := dict "listen" "0.0.0.0:6380" "admin" "0.0.0.0:9380" }}
{{- /* What else these have, TLS and a token, is the user's; the addresses are those of the probes and Services. */ -}}
{{- range $key, $address := dict "listen" "address" "admin" "listen" }}
{{- if hasKey $config $key }}
{{- $given := get $config $key }}
{{- if or (not (kindIs "map" $given)) (hasKey (kindIs "map" $given | ternary $given dict) $address) }}
{{- fail (printf "config.%s: the chart sets the address; only a mapping without %s may stand here" $key $address) }}
{{- end }}
{{- $_ := set $ours $key (dict $address (get $ours $key)) }}
{{- end }}
{{- end }}
{{- if $nodes.enabled }}
{{- if $locks.nodes }}{{ fail "config.locks.nodes: with nodes.enabled the chart sets them; give one of the two" }}{{ end }}
{{- if not (has (int $nodes.count) (list 1 3 5 7)) }}{{ fail "nodes.count: 1, 3, 5 or 7" }}{{ end }}
{{- $filled := dict "nodes" (include "lockgate.nodes" (dict "root" . "count" $nodes.count) | fromYamlArray) }}
{{- if $nodes.nextCount }}
{{- if not (has (int $nodes.nextCount) (list 1 3 5 7)) }}{{ fail "nodes.nextCount: 1, 3, 5 or 7" }}{{ end }}
{{- if $locks.next_nodes }}{{ fail "config.locks.next_nodes: nodes.nextCount sets them; give one of the two" }}{{ end }}
{{- $_ := set $filled "next_nodes" (include "lockgate.nodes" (dict "root" . "count" $nodes.nextCount) | fromYamlArray) }}
{{- end }}
{{- $_ := set $ours "locks" $filled }}
{{- $wait := include "lockgate.seconds" ($locks.max_ttl | default "60s") | int64 }}
{{- if lt (int64 $nodes.waitSeconds) (add $wait 5) }}
{{- fail (printf "nodes.waitSeconds: %d is too short for config.locks.max_ttl, which takes %d: a node would be ready before it votes" (int64 $nodes.waitSeconds) (add $wait 5)) }}
{{- end }}
{{- else if not $locks.nodes }}
{{- fail "config.locks.nodes: the lock nodes, as [\"redis://lock1:6379\", …]; or nodes.enabled for the chart's own" }}
{{- end }}
{{- toYaml (mergeOverwrite (deepCopy $config) $ours) }}
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
  {{- with .Values.extraVolumeMounts }}{{ toYaml . | nindent 2 }}{{ end }}
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
  {{- with .Values.extraVolumes }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}
