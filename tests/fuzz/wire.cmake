# Seeds: two commands frames, a bulk frame of transfer 1, an acknowledgement and a goodbye, as the target's own notation.
set(WIRE_SEED ${CMAKE_CURRENT_SOURCE_DIR}/seeds/wire_frames.bin)
gpupool_fuzz(wire_fuzz SOURCES wire_fuzz.cpp LINKS gpupool_wire SEEDS ${WIRE_SEED})
