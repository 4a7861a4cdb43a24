{{/* Start of every object's name: the release, with the chart's name unless the release already says it. */}}
{{- define "forebay.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Start of the name of a cluster-scoped object: two releases in two namespaces may bear the same name. */}}
{{- define "forebay.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "forebay.fullname" .) -}}
{{- end -}}

{{/* Labels of an object; argument: dict "root" $ "component" "operator". */}}
{{- define "forebay.labels" -}}
{{ include "forebay.selectorLabels" . }}
app.kubernetes.io/part-of: forebay
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Labels by which a Deployment, Service or policy finds its pods. */}}
{{- define "forebay.selectorLabels" -}}
app.kubernetes.io/name: forebay
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* An image; argument: dict "root" $ "image" .Values.images.operator. */}}
{{- define "forebay.image" -}}
{{- printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}

{{/* Security context of every pod: a user that owns nothing in any image, and files that its containers share. */}}
{{- define "forebay.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "forebay.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Placement of a component's pods; argument: dict "root" $ "component" "operator" "values" .Values.operator. */}}
{{- define "forebay.placement" -}}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
affinity:
{{- if .values.affinity }}
  {{- toYaml .values.affinity | nindent 2 }}
{{- else }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "forebay.selectorLabels" . | nindent 14 }}
{{- end }}
{{- with .root.Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* A rule for each of these: kinds of objects in the namespaces that Forebay drives. */}}
{{- define "forebay.operatorRules" -}}
# What users write.
- apiGroups: [forebay.dev]
  resources: [inferenceservices]
  verbs: [get, list, watch]
- apiGroups: [forebay.dev]
  resources: [inferenceservices/status, inferenceservices/scale]
  verbs: [get, patch]
# What Forebay has learned of a service. Server-side apply of a new object asks for create.
- apiGroups: [forebay.dev]
  resources: [servicecheckpoints]
  verbs: [get, list, watch, create, patch]
# Replicas: made, labelled (promotion is one patch of a label), removed.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
# To stand back where somebody else's autoscaler drives the same service.
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [list, watch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end -}}

{{- define "forebay.gatewayRules" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [forebay.dev]
  resources: [inferenceservices]
  verbs: [list, watch]
{{- end -}}

{{/* A ClusterRole with its binding, or a Role with its binding in each namespace; argument: dict "root" $ "component" "operator" "rules" TEXT. */}}
{{- define "forebay.namespacedRights" -}}
{{- $name := printf "%s-%s" (include "forebay.fullname" .root) .component -}}
{{- $clusterName := printf "%s-%s" (include "forebay.clusterName" .root) .component -}}
{{- $context := . -}}
{{- if .root.Values.namespaces }}
{{- range .root.Values.namespaces }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}
  namespace: {{ . }}
  labels:
    {{- include "forebay.labels" $context | nindent 4 }}
rules:
  {{- $context.rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name }}
  namespace: {{ . }}
  labels:
    {{- include "forebay.labels" $context | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ $name }}
    namespace: {{ $context.root.Release.Namespace }}
{{- end }}
{{- else }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ $clusterName }}
  labels:
    {{- include "forebay.labels" . | nindent 4 }}
rules:
  {{- .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $clusterName }}
  labels:
    {{- include "forebay.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $clusterName }}
subjects:
  - kind: ServiceAccount
    name: {{ $name }}
    namespace: {{ .root.Release.Namespace }}
{{- end }}
{{- end -}}

{{- define "forebay.gatewayEnvironment" -}}
- name: FOREBAY_POD_UID
  valueFrom: {fieldRef: {fieldPath: metadata.uid}}
- name: FOREBAY_NAMESPACES
  value: {{ join "," .Values.namespaces | quote }}
- name: FOREBAY_GATEWAY_DIR
  value: /var/run/forebay
- name: FOREBAY_GATEWAY_START_WAIT_SECONDS
  value: {{ .Values.gateway.startWaitSeconds | int64 | quote }}
- name: FOREBAY_GATEWAY_BUSY_WAIT_SECONDS
  value: {{ .Values.gateway.busyWaitSeconds | int64 | quote }}
- name: FOREBAY_GATEWAY_QUEUE_REQUESTS
  value: {{ .Values.gateway.queueRequests | int64 | quote }}
- name: FOREBAY_GATEWAY_QUEUE_MEBIBYTES
  value: {{ .Values.gateway.queueMebibytes | int64 | quote }}
- name: FOREBAY_GATEWAY_DRAIN_SECONDS
  value: {{ .Values.gateway.drainSeconds | int64 | quote }}
{{- end -}}

{{- define "forebay.commonEgress" -}}
# Names.
- ports:
    - port: 53
      protocol: UDP
    - port: 53
      protocol: TCP
# The API server, whose address a policy cannot name.
- ports:
    {{- range .Values.networkPolicy.apiServerPorts }}
    - port: {{ . }}
    {{- end }}
{{- end -}}
