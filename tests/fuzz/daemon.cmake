# The daemon's readers of data from unknown peers (Hello) and from its workers (messages, Report, the probe's output).
gpupool_fuzz(daemon_fuzz SOURCES daemon_fuzz.cpp LINKS gpupool_daemon)
# Those of administration, of sessions that wait, and the policy's texts.
gpupool_fuzz(messages_fuzz SOURCES messages_fuzz.cpp LINKS gpupool_messages gpupool_policy)
