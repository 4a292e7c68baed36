# Seeds: the fat binaries that nvcc wrote for the unit tests.
set(FATBIN_SEEDS)
foreach(SEED size.fatbin speed.fatbin kernels.cubin kernels.ptx)
  list(APPEND FATBIN_SEEDS ${CMAKE_BINARY_DIR}/tests/unit/common/fixtures/${SEED})
endforeach()
gpupool_fuzz(fatbin_fuzz SOURCES fatbin_fuzz.cpp LINKS gpupool_fatbin SEEDS ${FATBIN_SEEDS})
add_dependencies(fatbin_fuzz gpupool_fatbin_fixtures)
