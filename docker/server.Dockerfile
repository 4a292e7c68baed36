# The gpupool server. Build context: a bundle made by scripts/bundle.
#   scripts/bundle /tmp/gpupool && docker build -f docker/server.Dockerfile -t gpupool-server /tmp/gpupool
FROM debian:bookworm-slim

# For the NVIDIA container toolkit: mount the host's driver, for compute and for its management library.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

COPY bin/ /opt/gpupool/bin/
COPY lib/ /opt/gpupool/lib/
COPY LICENSE /opt/gpupool/LICENSE
# The folder itself, not links to its programs, because each finds the others relative to itself.
ENV PATH=/opt/gpupool/bin:$PATH

# The server opens no system file and no port below 1024, so it needs no privilege. The folder is for a socket in a
# volume shared with client containers; the volume gets its owner from here.
RUN useradd --system --create-home --uid 9470 gpupool && install -d -o gpupool -g gpupool /run/gpupool-socket
USER gpupool

EXPOSE 9470
STOPSIGNAL SIGTERM
ENTRYPOINT ["gpupoold"]
CMD ["--listen", "0.0.0.0:9470", "--driver", "auto"]
