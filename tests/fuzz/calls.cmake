# The decoders of client and worker for each other's calls. Inputs are built from the call table, so no seeds are
# needed.
add_library(gpupool_fuzz_calls OBJECT
  call_functions.cpp calls/code.cpp calls/internal.cpp calls/memory.cpp calls/streams.cpp)
target_link_libraries(gpupool_fuzz_calls PUBLIC gpupool_worker_core)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(gpupool_fuzz_calls PRIVATE -fsanitize=fuzzer-no-link)
endif()

gpupool_fuzz(commands_fuzz SOURCES commands_fuzz.cpp $<TARGET_OBJECTS:gpupool_fuzz_calls> LINKS gpupool_worker_core)
gpupool_fuzz(worker_fuzz SOURCES worker_fuzz.cpp nothing_driver.cpp $<TARGET_OBJECTS:gpupool_fuzz_calls>
             LINKS gpupool_worker_core gpupool_test_transport COSTLY)
gpupool_fuzz(session_fuzz SOURCES session_fuzz.cpp LINKS gpupool_client_core gpupool_test_transport COSTLY)
gpupool_fuzz(welcome_fuzz SOURCES welcome_fuzz.cpp LINKS gpupool_client_core)
