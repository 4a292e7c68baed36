# Seeds in the target's own notation: two frames of commands, a bulk frame of transfer 1, an acknowledgement and a
# goodbye; a packed piece of transfer 1, an unpacked one, and one whose declared size is too small.
set(WIRE_SEEDS ${CMAKE_CURRENT_SOURCE_DIR}/seeds/wire_frames.bin ${CMAKE_CURRENT_SOURCE_DIR}/seeds/wire_pieces.bin)
gpupool_fuzz(wire_fuzz SOURCES wire_fuzz.cpp LINKS gpupool_wire gpupool_test_transport SEEDS ${WIRE_SEEDS})
