# What tools run in, with sandbox=docker: Python 3.11 with numpy, sympy and pandas, bash and the usual programs.
# Nothing of this project is inside: the host sends the runner when a session starts.
#   make sandbox-image                               (or docker/build_offline.sh where no registry is reachable)
FROM debian:bookworm-slim AS packages
RUN apt-get update && apt-get install --yes --no-install-recommends python3-pip
COPY sandbox.constraints.txt /
RUN python3 -m pip install --no-cache-dir --no-deps --no-compile --only-binary :all: \
    --target /packages -r /sandbox.constraints.txt

FROM debian:bookworm-slim
RUN apt-get update && apt-get install --yes --no-install-recommends python3 && rm -rf /var/lib/apt/lists/*
COPY --from=packages /packages /usr/local/lib/python3.11/dist-packages
COPY sandbox.finish.sh /root/
RUN bash /root/sandbox.finish.sh && rm /root/sandbox.finish.sh
ARG VERSION
LABEL miles-agents.sandbox-image=$VERSION
ENV PATH=/usr/local/bin:/usr/bin:/bin
CMD ["bash"]
