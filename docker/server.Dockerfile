# The gpupool server. Build context: a bundle made by scripts/bundle.
#   scripts/bundle /tmp/gpupool && docker build -f docker/server.Dockerfile -t gpupool-server /tmp/gpupool
FROM debian:bookworm-slim

# With the NVIDIA container toolkit: mount the host's driver, for computing and for its management library.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

COPY bin/ /opt/gpupool/bin/
COPY lib/ /opt/gpupool/lib/
COPY LICENSE /opt/gpupool/LICENSE
# The folder, not only links to its programs: each finds the others by where it lies itself.
ENV PATH=/opt/gpupool/bin:$PATH

# The server opens no file of the system's and no port below 1024, so it needs no privilege.
# The folder is for a socket that a volume shows to client containers, who get its owner from here.
RUN useradd --system --create-home --uid 9470 gpupool && install -d -o gpupool -g gpupool /run/gpupool-socket
USER gpupool

EXPOSE 9470
STOPSIGNAL SIGTERM
ENTRYPOINT ["gpupoold"]
CMD ["--listen", "0.0.0.0:9470", "--driver", "auto"]
