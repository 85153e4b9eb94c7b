# The main job on a CPU:
#   docker build -f docker/train.cpu.Dockerfile -t miles-agents:cpu .
#   docker run --rm -it --security-opt seccomp=unconfined --security-opt apparmor=unconfined \
#       --security-opt systempaths=unconfined -v "$PWD/outputs:/home/agent/outputs" miles-agents:cpu
# The security options let the sandbox make its own namespaces and mounts; tools still run without network, files
# or privileges of this container.
FROM python:3.11-slim-bookworm

RUN useradd --create-home --uid 1000 agent
WORKDIR /opt/miles_agents
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY miles_agents miles_agents
COPY envs envs
COPY tools tools
COPY trainers trainers
COPY configs configs
# The default index's torch carries CUDA and serves too; pass e.g. --build-arg TORCH_ARGS="--index-url URL" with the
# address of an index of CPU builds for a smaller image.
ARG TORCH_ARGS=""
RUN pip install --no-cache-dir -c constraints.txt $TORCH_ARGS torch==2.13.0 \
    && pip install --no-cache-dir -c constraints.txt .

USER agent
WORKDIR /home/agent
ENTRYPOINT ["python", "-m"]
CMD ["miles_agents.train", "env=python_math"]
