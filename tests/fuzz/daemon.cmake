# What the daemon reads from strangers (Hello) and from its workers (messages, Report, the probe's answer).
gpupool_fuzz(daemon_fuzz SOURCES daemon_fuzz.cpp LINKS gpupool_daemon)
