# Flags for everything that gpupool builds, and helpers:
#   gpupool_library(name SOURCES...)        a static library; GPUPOOL_UNITY of its files are compiled as one
#   gpupool_test(name SOURCES ... LINKS ... [SHARDS n | CASES] [TIMEOUT seconds] [LABEL threads|long])
#                                           a GoogleTest executable. ctest runs it as one test; with SHARDS as n tests
#                                           that share its cases; with CASES each case as a test, for cases that each
#                                           start a server. "threads": also run under ThreadSanitizer; "long": run only by
#                                           scripts/test --long
#   gpupool_precompile(name PRIVATE headers... | REUSE_FROM target)
#                                           precompiles headers that many files of a target include. Only with
#                                           GPUPOOL_PRECOMPILE (presets debug and tsan): the release build shows that
#                                           each file includes what it needs

option(GPUPOOL_BUILD_TESTS "Build the tests" ON)
option(GPUPOOL_BUILD_BENCHMARKS "Build the benchmarks" ON)
option(GPUPOOL_PRECOMPILE "Precompile headers that many files include" OFF)
set(GPUPOOL_UNITY 0 CACHE STRING "Files that are compiled as one, 0 for none: shortens a whole build")
option(GPUPOOL_WERROR "Treat warnings as errors" ON)
option(GPUPOOL_STATIC_RUNTIME "Link everything but glibc statically (portable bundles)" ON)
set(GPUPOOL_SANITIZE "" CACHE STRING "Sanitizers, as for -fsanitize=")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

# The build tree has the layout of a bundle (scripts/bundle), so that programs find each other and the libraries in the
# same way: bin/gpupoold, bin/gpupool, bin/gpupool-worker, lib/libgpupool-softgpu.so, lib/gpupool/libcuda.so.1.
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)

# The compiler cache, if it is installed.
find_program(CCACHE ccache)
if(CCACHE)
  set(_cached ${CMAKE_SOURCE_DIR}/cmake/compile-cached ${CMAKE_SOURCE_DIR} ${CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${_cached})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${_cached})
endif()

find_package(Threads REQUIRED)

if(GPUPOOL_SANITIZE)
  add_compile_options(-fsanitize=${GPUPOOL_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${GPUPOOL_SANITIZE})
  if(GPUPOOL_SANITIZE MATCHES "undefined")
    # gpupool passes enumeration values of applications on to the driver unchecked, and the driver refuses values that
    # cuda.h does not define. -fsanitize=enum would report them.
    add_compile_options(-fno-sanitize-recover=undefined -fno-sanitize=enum)
  endif()
  if(GPUPOOL_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # gcc warns that ThreadSanitizer does not support Asio's fences. Asio's mutexes order the same accesses.
    add_compile_options(-Wno-tsan)
  endif()
endif()

# A faster linker, if one is installed, for builds that are only tested. The distribution's default linker links
# bundles.
if(GPUPOOL_SANITIZE)
  include(CheckLinkerFlag)
  foreach(linker mold lld)
    check_linker_flag(CXX "-fuse-ld=${linker}" GPUPOOL_LINKS_WITH_${linker})
    if(GPUPOOL_LINKS_WITH_${linker})
      add_link_options(-fuse-ld=${linker})
      break()
    endif()
  endforeach()
endif()

# The sanitizer's runtime library, or empty. A program without the sanitizer can load a library that was built with it
# if this runtime is preloaded: LD_PRELOAD=${GPUPOOL_SANITIZER_RUNTIME}.
set(GPUPOOL_SANITIZER_RUNTIME "")
if(GPUPOOL_SANITIZE MATCHES "address|thread")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    string(REGEX REPLACE ".*(address|thread).*" "\\1" runtime "${GPUPOOL_SANITIZE}")
    string(REPLACE "address" "libasan.so" runtime "${runtime}")
    string(REPLACE "thread" "libtsan.so" runtime "${runtime}")
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=${runtime}
                    OUTPUT_VARIABLE GPUPOOL_SANITIZER_RUNTIME OUTPUT_STRIP_TRAILING_WHITESPACE)
    get_filename_component(GPUPOOL_SANITIZER_RUNTIME "${GPUPOOL_SANITIZER_RUNTIME}" REALPATH)
  endif()
endif()

add_library(gpupool_flags INTERFACE)
target_include_directories(gpupool_flags INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/generated)
target_compile_options(gpupool_flags INTERFACE -Wall -Wextra -Wno-missing-field-initializers)
if(GPUPOOL_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # gcc takes a file that another one includes for a header, and warns of types whose members are local to it.
  target_compile_options(gpupool_flags INTERFACE -Wno-subobject-linkage)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(gpupool_flags INTERFACE -Wthread-safety)  # common/thread_annotations.h
endif()
if(GPUPOOL_WERROR)
  target_compile_options(gpupool_flags INTERFACE -Werror)
endif()
target_link_libraries(gpupool_flags INTERFACE Threads::Threads)

# {fmt}: compiled once if this version allows it, else header-only.
if(NOT DEFINED GPUPOOL_FMT_COMPILES)
  try_compile(GPUPOOL_FMT_COMPILES ${CMAKE_BINARY_DIR}/CMakeFiles/fmt_check
              SOURCES ${CMAKE_SOURCE_DIR}/cmake/fmt.cpp ${CMAKE_SOURCE_DIR}/cmake/fmt_check.cpp
              CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON)
endif()
if(GPUPOOL_FMT_COMPILES)
  add_library(gpupool_fmt STATIC ${CMAKE_SOURCE_DIR}/cmake/fmt.cpp)
  target_link_libraries(gpupool_flags INTERFACE gpupool_fmt)
else()
  message(STATUS "{fmt}: this version is used header-only, which takes longer to compile")
  target_compile_definitions(gpupool_flags INTERFACE FMT_HEADER_ONLY=1)
endif()

# toml++: compiled once.
add_library(gpupool_toml STATIC ${CMAKE_SOURCE_DIR}/cmake/toml.cpp)
target_compile_definitions(gpupool_toml PUBLIC TOML_HEADER_ONLY=0 TOML_EXCEPTIONS=0 TOML_ENABLE_FORMATTERS=0
                           PRIVATE TOML_IMPLEMENTATION=1)

# Asio, the daemon's event loop: compiled once.
add_library(gpupool_asio STATIC ${CMAKE_SOURCE_DIR}/cmake/asio.cpp)
target_compile_definitions(gpupool_asio PUBLIC ASIO_STANDALONE=1 ASIO_NO_DEPRECATED=1 ASIO_SEPARATE_COMPILATION=1)
target_link_libraries(gpupool_asio PUBLIC gpupool_flags)

# Not with a sanitizer: its runtime must not be linked statically into our shared libraries.
if(GPUPOOL_STATIC_RUNTIME AND NOT GPUPOOL_SANITIZE)
  add_link_options(-static-libstdc++ -static-libgcc)
  # Replaces the functions of a glibc newer than 2.35 that libstdc++.a and our code use on newer distributions. It is an
  # object, not an archive: the linker would skip an archive's members for libraries further along the link line.
  set(_glibc_compat "${CMAKE_BINARY_DIR}/glibc_compat.o")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/glibc_compat.c)
  execute_process(COMMAND ${CMAKE_C_COMPILER} -std=gnu17 -O2 -fPIC -ffunction-sections -fno-builtin -w -c
                          ${CMAKE_SOURCE_DIR}/cmake/glibc_compat.c -o ${_glibc_compat} RESULT_VARIABLE _failed)
  if(_failed)
    message(FATAL_ERROR "cmake/glibc_compat.c does not compile")
  endif()
  string(APPEND CMAKE_CXX_STANDARD_LIBRARIES " ${_glibc_compat}")
  # glibc before 2.36 cannot read packed relocations.
  include(CheckLinkerFlag)
  check_linker_flag(CXX "LINKER:-z,nopack-relative-relocs" GPUPOOL_LINKER_CAN_PACK)
  if(GPUPOOL_LINKER_CAN_PACK)
    add_link_options("LINKER:-z,nopack-relative-relocs")
  endif()
endif()

function(gpupool_precompile name)
  if(GPUPOOL_PRECOMPILE)
    target_precompile_headers(${name} ${ARGN})
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      target_compile_options(${name} PRIVATE -fpch-preprocess)  # for ccache
    endif()
  endif()
endfunction()

function(gpupool_library name)
  add_library(${name} STATIC ${ARGN})
  if(GPUPOOL_UNITY)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${GPUPOOL_UNITY})
  endif()
  target_link_libraries(${name} PUBLIC gpupool_flags)
endfunction()

# Builds everything that the tests with the label "threads" run, so that ThreadSanitizer needs no full build.
# gpupool_test adds its tests; other tests add their programs themselves.
add_custom_target(thread_tests)

# Exists only for its precompiled headers, which the tests reuse. It is an executable because the tests are: headers can
# be reused only with the same flags.
if(GPUPOOL_PRECOMPILE)
  find_package(GTest REQUIRED)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/test_headers.cpp CONTENT "int main() {}\n")
  add_executable(gpupool_test_headers EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/test_headers.cpp)
  target_link_libraries(gpupool_test_headers PRIVATE gpupool_flags GTest::gtest)
  gpupool_precompile(gpupool_test_headers PRIVATE <gtest/gtest.h> <algorithm> <atomic> <chrono> <functional> <map>
                     <memory> <mutex> <optional> <span> <string> <thread> <vector> <fmt/format.h>)
endif()

function(gpupool_test name)
  cmake_parse_arguments(ARG "CASES" "TIMEOUT;LABEL;SHARDS" "SOURCES;LINKS" ${ARGN})
  find_package(GTest REQUIRED)
  include(GoogleTest)
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINKS} gpupool_flags GTest::gtest_main)
  gpupool_precompile(${name} REUSE_FROM gpupool_test_headers)
  if(GPUPOOL_PRECOMPILE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # gcc hides these warnings in system headers, but not in precompiled ones, where they are false (std::string).
    # Builds without precompiled headers have the warnings.
    target_compile_options(${name} PRIVATE -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow -Wno-stringop-overread)
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  set(properties TIMEOUT ${ARG_TIMEOUT})
  set(environment)
  if(GPUPOOL_SANITIZE MATCHES "thread")
    list(APPEND environment TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp:history_size=4)
  endif()
  if(ARG_LABEL)
    list(APPEND properties LABELS ${ARG_LABEL})
  endif()
  if(ARG_LABEL STREQUAL "threads")
    add_dependencies(thread_tests ${name})
  endif()
  if(ARG_CASES)
    if(environment)
      list(APPEND properties ENVIRONMENT ${environment})
    endif()
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST PROPERTIES ${properties})
    return()
  endif()
  # The cases of one executable share a process: starting a process per case takes longer than most cases run.
  string(REGEX REPLACE "^gpupool_" "" base ${name})
  if(NOT ARG_SHARDS)
    add_test(NAME ${base} COMMAND ${name} --gtest_brief=1)
    set_tests_properties(${base} PROPERTIES ${properties} ENVIRONMENT "${environment}")
    return()
  endif()
  foreach(shard RANGE 1 ${ARG_SHARDS})
    math(EXPR index "${shard} - 1")
    add_test(NAME ${base}.${shard} COMMAND ${name} --gtest_brief=1)
    set_tests_properties(${base}.${shard} PROPERTIES ${properties}
      ENVIRONMENT "${environment};GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${index}")
  endforeach()
endfunction()

# Adds those of the named folders that exist.
function(gpupool_subdirectories)
  foreach(folder IN LISTS ARGN)
    if(EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/CMakeLists.txt")
      add_subdirectory(${folder})
    endif()
  endforeach()
endfunction()
