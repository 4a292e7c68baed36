# A machine without a GPU whose CUDA programs run on a gpupool server. Build context: a bundle made by scripts/bundle.
#   scripts/bundle /tmp/gpupool && docker build -f docker/client.Dockerfile -t gpupool-client /tmp/gpupool
# Put programs on top with `FROM gpupool-client`, or mount them.
FROM debian:bookworm-slim

COPY bin/gpupool bin/gpupoold bin/gpupool-worker /opt/gpupool/bin/
COPY lib/ /opt/gpupool/lib/
COPY LICENSE /opt/gpupool/LICENSE
# PATH names the folder itself: through links elsewhere the programs would not find each other.
ENV PATH=/opt/gpupool/bin:$PATH

# The server's address; override with `docker run -e GPUPOOL_SERVER=HOST:PORT`.
ENV GPUPOOL_SERVER=host.docker.internal:9470

# Runs every command of the container with the client library.
ENTRYPOINT ["gpupool", "run", "--"]
CMD ["gpupool", "status"]
