# Tessera in a container, for the CPU:
#   docker build --tag tessera .
# and for GPUs (CUDA 12.4 or later; run it with --gpus all):
#   docker build --tag tessera --build-arg BASE=nvidia/cuda:12.8.1-devel-ubuntu24.04 .
# Then:
#   docker run --rm --volume "$PWD:/data" tessera train --config quickstart.yaml
ARG BASE=debian:12
FROM ${BASE}

COPY . /tessera
# The image may run on another machine than it is built on. x86-64-v3: processors with AVX2.
ARG CPU_ARCH=x86-64-v3
RUN /tessera/tools/install \
 && cmake -S /tessera -B /tmp/build -G Ninja -DTESSERA_TESTS=OFF -DTESSERA_CPU_ARCH=${CPU_ARCH} \
 && cmake --build /tmp/build \
 && cmake --install /tmp/build --prefix /usr/local \
 && rm -rf /tmp/build

WORKDIR /data
CMD ["train", "--help"]
