{{/* The name of everything: the release's, with the chart's if that is not in it. */}}
{{- define "seckill.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "seckill.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: instance
{{- end }}

{{- define "seckill.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: seckill
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "seckill.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* A container may do nothing but run. */}}
{{- define "seckill.container.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "seckill.pod.security" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* A setting as text. Helm reads numbers as floats, and would print a million as 1e+06. */}}
{{- define "seckill.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{- define "seckill.catalogue" -}}
{{- .Values.catalogue.existingConfigMap | default (ternary (printf "%s-catalogue" (include "seckill.name" .)) "" (not (empty .Values.catalogue.files))) }}
{{- end }}

{{/* How long it takes until an instance that is not ready gets no new connections: 2 s, three times. An election in etcd, or of a
     new primary, mostly takes less, and leaves the buyers in their queues. */}}
{{- define "seckill.ready.period" -}}2{{- end }}
{{- define "seckill.ready.failures" -}}3{{- end }}

{{/* Delay and timeout of a stopping instance, and ten seconds in which it gives its locks back. */}}
{{- define "seckill.grace" -}}
{{- addf (.Values.settings.SECKILL_DRAIN_DELAY_S | default 0) (.Values.settings.SECKILL_DRAIN_TIMEOUT_S | default 10) 10 | ceil | int }}
{{- end }}

{{/* The systems that a URL may name, with their usual ports; "" for those that listen on none. */}}
{{- define "seckill.systems" -}}
{etcd: "2379", etcds: "2379", redis: "6379", rediss: "6379", redlock: "6379", redlocks: "6379", zookeeper: "2181", zookeepers: "2181",
postgres: "5432", postgresql: "5432", mysql: "3306", mariadb: "3306", http: "80", https: "443", stripe: "443", unix: "", file: "", local: "", none: ""}
{{- end }}

{{/* The TCP ports in the URLs that instances reach, or those of their systems, one a line. */}}
{{- define "seckill.ports" -}}
{{- $of := include "seckill.systems" . | fromYaml }}
{{- $ports := dict }}
{{- $urls := regexSplit "\\s+" (.Values.secrets.SECKILL_WEBHOOK_URL | default "" | toString | trim) -1 }}
{{- range concat (list .Values.lock.url .Values.store.url (.Values.secrets.SECKILL_REFUNDS | default "") .Values.traces.endpoint) $urls }}
{{- $scheme := first (splitList "://" .) }}
{{- $default := get $of (first (splitList "+" $scheme)) }}
{{- if hasSuffix "+sentinel" $scheme }}{{ $_ := set $ports $default "" }}{{ $default = "26379" }}{{ end }}
{{- if $default }}
{{- $rest := regexReplaceAll "[/?#].*$" (regexReplaceAll "^[^:]*://" . "") "" }}
{{- range splitList "," (regexReplaceAll "^.*@" $rest "") }}
{{- $_ := set $ports (regexFind ":[0-9]+$" . | trimPrefix ":" | default $default) "" }}
{{- end }}
{{- end }}
{{- end }}
{{- keys $ports | sortAlpha | join "\n" }}
{{- end }}

{{/* Fails with a sentence for values that each are possible, and together are not. */}}
{{- define "seckill.check" -}}
{{- $detected := mul (include "seckill.ready.period" .) (include "seckill.ready.failures" .) }}
{{- $settings := .Values.settings }}
{{- $delay := $settings.SECKILL_DRAIN_DELAY_S | default 0 }}
{{- if lt (float64 $delay) (float64 (add $detected 1)) }}
{{- fail (printf "settings.SECKILL_DRAIN_DELAY_S is %v: it must be %d or more, as an instance that leaves gets new connections for up to %d s" $delay (add $detected 1) $detected) }}
{{- end }}
{{- if and (or (empty .Values.lock.url) (empty .Values.store.url)) (not (or .Values.existingSecret $settings.SECKILL_SECRETS_DIR)) }}
{{- fail "lock.url or store.url is empty: then existingSecret, or the files of settings.SECKILL_SECRETS_DIR, must have it" }}
{{- end }}
{{- /* Not a pattern of the schema: where one is missed Helm 4 prints the value, password and all. */}}
{{- range $name, $url := dict "lock.url" .Values.lock.url "store.url" .Values.store.url "secrets.SECKILL_REFUNDS" (.Values.secrets.SECKILL_REFUNDS | default "") }}
{{- if not (or (empty $url) (and (contains "://" $url) (hasKey (include "seckill.systems" $ | fromYaml) (first (regexSplit "[+:]" $url -1))))) }}
{{- fail (printf "%s is no URL of a system that is known, such as etcd://etcd:2379 or redis://valkey:6379/0" $name) }}
{{- end }}
{{- end }}
{{- if and .Values.networkPolicy.enabled (empty .Values.networkPolicy.egress) (or (empty .Values.lock.url) (empty .Values.store.url)) }}
{{- fail "networkPolicy.egress is empty, and so is lock.url or store.url: the ports of what instances reach are not known; name them" }}
{{- end }}
{{- if and .Values.service.externalTrafficPolicy (eq .Values.service.type "ClusterIP") }}
{{- fail "service.externalTrafficPolicy is of NodePort and LoadBalancer, and service.type is ClusterIP" }}
{{- end }}
{{- if and .Values.service.loadBalancerClass (ne .Values.service.type "LoadBalancer") }}
{{- fail (printf "service.loadBalancerClass is of a LoadBalancer, and service.type is %s" .Values.service.type) }}
{{- end }}
{{- $several := or (gt (int .Values.replicas) 1) .Values.autoscaling.enabled }}
{{- range $scheme, $keeps := dict "local" "the threads of one process" "file" "the processes of one pod" }}
{{- if and $several (hasPrefix (printf "%s:" $scheme) $.Values.lock.url) }}
{{- fail (printf "lock.url is %s://, which keeps only %s apart: say replicas=1, or use a lock that instances share" $scheme $keeps) }}
{{- end }}
{{- end }}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) }}
{{- fail "autoscaling.minReplicas is greater than autoscaling.maxReplicas" }}
{{- end }}
{{- range .Values.autoscaling.schedule }}
{{- if gt (int .replicas) (int $.Values.autoscaling.maxReplicas) }}
{{- fail (printf "autoscaling.schedule asks for %d replicas, and autoscaling.maxReplicas allows %d" (int .replicas) (int $.Values.autoscaling.maxReplicas)) }}
{{- end }}
{{- end }}
{{- if and .Values.autoscaling.enabled (not .Values.monitoring.enabled) }}
{{- fail "autoscaling.enabled needs monitoring.enabled: the queue that it looks at is a metric that Prometheus must have" }}
{{- end }}
{{- if and (not (or .Values.existingSecret $settings.SECKILL_SECRETS_DIR)) (ne (empty .Values.secrets.SECKILL_WEBHOOK_URL) (empty .Values.secrets.SECKILL_WEBHOOK_SECRET)) }}
{{- fail "secrets.SECKILL_WEBHOOK_URL and secrets.SECKILL_WEBHOOK_SECRET go together" }}
{{- end }}
{{- if and (or .Values.catalogue.files .Values.catalogue.binaryFiles) (not (hasKey .Values.catalogue.files "catalogue.toml")) }}
{{- fail "catalogue.files has no catalogue.toml, which names the pictures" }}
{{- end }}
{{- if and .Values.catalogue.files .Values.catalogue.existingConfigMap }}
{{- fail "catalogue.files and catalogue.existingConfigMap exclude each other" }}
{{- end }}
{{- end }}
