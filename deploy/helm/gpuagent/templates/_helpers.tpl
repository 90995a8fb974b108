{{/* The name of all objects: the release's, with the chart's in it. */}}
{{- define "gpuagent.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains "gpuagent" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-gpuagent" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* By which the pods are chosen: never changed, as a DaemonSet's selector cannot be. */}}
{{- define "gpuagent.selector" -}}
app.kubernetes.io/name: gpuagent
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "gpuagent.labels" -}}
{{ include "gpuagent.selector" . }}
app.kubernetes.io/component: node-agent
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- end -}}

{{- define "gpuagent.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "gpuagent.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "gpuagent.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* The number of the port that `config.listen` names. */}}
{{- define "gpuagent.port" -}}
{{- regexFind "[0-9]+$" .Values.config.listen -}}
{{- end -}}

{{/* Who runs the agent: root only where it may end processes. */}}
{{- define "gpuagent.user" -}}
{{- ternary "0" "10837" .Values.remedies.enabled -}}
{{- end -}}
