# The daemon's readers of data from unknown peers (Hello) and from its workers (messages, Report, the probe's output).
gpupool_fuzz(daemon_fuzz SOURCES daemon_fuzz.cpp LINKS gpupool_daemon)
