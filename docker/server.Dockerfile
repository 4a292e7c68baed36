# The gpupool server. Build context: a bundle made by scripts/bundle.
#   scripts/bundle /tmp/gpupool && docker build -f docker/server.Dockerfile -t gpupool-server /tmp/gpupool
FROM debian:bookworm-slim

# Makes the NVIDIA container toolkit mount the host's driver and its management library (NVML).
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

COPY bin/ /opt/gpupool/bin/
COPY lib/ /opt/gpupool/lib/
COPY LICENSE /opt/gpupool/LICENSE
# PATH names the folder itself: through links elsewhere the programs would not find each other.
ENV PATH=/opt/gpupool/bin:$PATH

# The server opens no system file and no port below 1024, so it needs no privilege. A volume mounted at
# /run/gpupool-socket takes over this folder's owner; it may have a socket that client containers share.
RUN useradd --system --create-home --uid 9470 gpupool && install -d -o gpupool -g gpupool /run/gpupool-socket
USER gpupool

EXPOSE 9470
STOPSIGNAL SIGTERM
ENTRYPOINT ["gpupoold"]
CMD ["--listen", "0.0.0.0:9470", "--driver", "auto"]
