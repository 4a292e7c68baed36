# CUDA's headers, and nvcc for the test programs: from an installed toolkit, or from NVIDIA's packages on PyPI, which
# scripts/install-dependencies puts below .deps. gpupool itself links no CUDA library. It needs cuda.h of 13.0, because
# the call table is checked against that header.
#
#   gpupool_cuda_headers        interface library: #include <cuda.h>, <cudaProfiler.h>, <cudaTypedefs.h>
#   gpupool_cuda_program(name SOURCES a.cu... [CUDART static|shared] [TOOLKIT 12|13] [OPTIONS ...] [DEPENDS ...])
#       a program below ${CMAKE_BINARY_DIR}/cuda, compiled by nvcc with default flags, as users' programs are. Never
#       sanitized. Sources include shared headers by their path in the source tree. The target's property
#       GPUPOOL_PROGRAM is the program's path.
#
# CUDA 12 is an installed toolkit, or the parts that scripts/install-dependencies fetches: nvcc 12.4 with its headers
# and its shared libcudart (.deps/nvcc12), and the static libcudart of 12.9 (.deps/cuda12), since that of 12.4 is not
# available separately. Without both there are no programs for CUDA 12.

set(GPUPOOL_CUDA13_ROOT "" CACHE PATH "A CUDA 13.0 toolkit (bin/nvcc, include/cuda.h); empty: find one")
set(GPUPOOL_CUDA12_ROOT "" CACHE PATH "A CUDA 12 toolkit, or only its include and lib; empty: find one")

# Sets `out` to the CUDA_VERSION of `root`, or to 0.
function(_gpupool_cuda_version root out)
  set(version 0)
  if(EXISTS "${root}/include/cuda.h")
    file(STRINGS "${root}/include/cuda.h" lines REGEX "^#define CUDA_VERSION [0-9]+" LIMIT_COUNT 1)
    string(REGEX MATCH "[0-9]+$" version "${lines}")
  endif()
  set(${out} "${version}" PARENT_SCOPE)
endfunction()

# Sets `out` to the first folder of ARGN whose CUDA_VERSION is in [least, most] and which has all of `parts`.
function(_gpupool_find_cuda out least most parts)
  foreach(root IN LISTS ARGN)
    _gpupool_cuda_version("${root}" version)
    if(version LESS least OR version GREATER most)
      continue()
    endif()
    set(complete TRUE)
    foreach(part IN LISTS parts)
      file(GLOB found "${root}/${part}")
      if(NOT found)
        set(complete FALSE)
      endif()
    endforeach()
    if(complete)
      set(${out} "${root}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${out} "" PARENT_SCOPE)
endfunction()

set(_installed "$ENV{CUDA_HOME}" "$ENV{CUDA_PATH}")
find_program(_nvcc_in_path nvcc)
if(_nvcc_in_path)
  get_filename_component(_nvcc_real "${_nvcc_in_path}" REALPATH)
  get_filename_component(_nvcc_bin "${_nvcc_real}" DIRECTORY)
  get_filename_component(_nvcc_root "${_nvcc_bin}" DIRECTORY)
  list(APPEND _installed "${_nvcc_root}")
endif()
unset(_nvcc_in_path CACHE)
file(GLOB _cuda12_installed /usr/local/cuda-12*)

_gpupool_find_cuda(_cuda13 13000 13009 "bin/nvcc;include/cudaProfiler.h;lib*/libcudart_static.a;lib*/libcudart.so*"
                   ${GPUPOOL_CUDA13_ROOT} ${_installed} /usr/local/cuda-13.0 /usr/local/cuda /opt/cuda
                   "${CMAKE_SOURCE_DIR}/.deps/cuda13/nvidia/cu13")
_gpupool_find_cuda(_cuda12 12000 12999 "lib*/libcudart_static.a;lib*/libcudart.so*"
                   ${GPUPOOL_CUDA12_ROOT} ${_installed} ${_cuda12_installed} /usr/local/cuda /opt/cuda
                   "${CMAKE_SOURCE_DIR}/.deps/cuda12/nvidia/cuda_runtime")
if(NOT _cuda13)
  message(FATAL_ERROR "No CUDA 13.0 (nvcc, cuda.h, cudaProfiler.h, libcudart): run scripts/install-dependencies, "
                      "which takes NVIDIA's packages from PyPI, or set GPUPOOL_CUDA13_ROOT")
endif()
message(STATUS "CUDA 13.0: ${_cuda13}")
if(_cuda12)
  message(STATUS "CUDA 12: ${_cuda12}")
else()
  message(STATUS "CUDA 12: not found; run scripts/install-dependencies to test with its runtime")
endif()

set(GPUPOOL_CUDA13 "${_cuda13}")
set(GPUPOOL_CUDA12 "${_cuda12}")
set(GPUPOOL_NVCC13 "${_cuda13}/bin/nvcc")
set(GPUPOOL_NVCC12 "")  # empty: programs with TOOLKIT 12 cannot be built
foreach(root IN ITEMS "${_cuda12}" "${CMAKE_SOURCE_DIR}/.deps/nvcc12")
  if(_cuda12 AND NOT GPUPOOL_NVCC12 AND EXISTS "${root}/bin/nvcc")
    set(GPUPOOL_NVCC12 "${root}/bin/nvcc")
    set(GPUPOOL_NVCC12_ROOT "${root}")
  endif()
endforeach()
if(GPUPOOL_NVCC12)
  message(STATUS "nvcc 12: ${GPUPOOL_NVCC12}")
else()
  message(STATUS "nvcc 12: not found; no programs are built with it")
endif()

add_library(gpupool_cuda_headers INTERFACE)
target_include_directories(gpupool_cuda_headers SYSTEM INTERFACE "${_cuda13}/include")

# nvcc uses g++, even if another compiler builds gpupool.
set(GPUPOOL_CUDA_HOST_COMPILER "" CACHE FILEPATH "nvcc's host compiler; empty: g++")
if(GPUPOOL_CUDA_HOST_COMPILER)
  set(GPUPOOL_NVCC_HOST "${GPUPOOL_CUDA_HOST_COMPILER}")
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(GPUPOOL_NVCC_HOST "${CMAKE_CXX_COMPILER}")
else()
  find_program(GPUPOOL_GXX g++ REQUIRED)
  set(GPUPOOL_NVCC_HOST "${GPUPOOL_GXX}")
endif()

set(CCACHE_PROGRAM)
if(CCACHE)
  set(CCACHE_PROGRAM "${CCACHE}")
endif()

function(gpupool_cuda_program name)
  cmake_parse_arguments(ARG "" "CUDART;TOOLKIT" "SOURCES;OPTIONS;DEPENDS" ${ARGN})
  if(NOT ARG_CUDART)
    set(ARG_CUDART static)
  endif()
  if(NOT ARG_TOOLKIT)
    set(ARG_TOOLKIT 13)
  endif()
  if(NOT ARG_TOOLKIT MATCHES "^1[23]$" OR NOT ARG_CUDART MATCHES "^(static|shared)$" OR NOT ARG_SOURCES)
    message(FATAL_ERROR "gpupool_cuda_program(${name}): SOURCES, CUDART static|shared, TOOLKIT 12|13")
  endif()
  set(root "${GPUPOOL_CUDA${ARG_TOOLKIT}}")
  set(shared_root "${root}")
  if(ARG_TOOLKIT EQUAL 12)
    set(shared_root "${GPUPOOL_NVCC12_ROOT}")
  endif()
  if(NOT root OR NOT shared_root)
    message(FATAL_ERROR "gpupool_cuda_program(${name}): no CUDA ${ARG_TOOLKIT}: run scripts/install-dependencies")
  endif()

  # cudart is linked by its path, because packages from PyPI have no libcudart.so link.
  file(GLOB static_library "${root}/lib*/libcudart_static.a")
  file(GLOB shared_library "${shared_root}/lib*/libcudart.so.1[23]")
  list(GET static_library 0 static_library)
  list(GET shared_library 0 shared_library)
  if(ARG_CUDART STREQUAL "static")
    set(cudart -Xlinker "${static_library}" -ldl -lrt -lpthread)
  else()
    get_filename_component(folder "${shared_library}" DIRECTORY)
    set(cudart -Xlinker "${shared_library}" -Xlinker -rpath -Xlinker "${folder}")
  endif()

  # Compiled and linked in two steps, because the compiler cache works with separate compilation only. The programs are
  # the same in every preset, so one preset's objects serve the others.
  set(program "${CMAKE_BINARY_DIR}/cuda/${name}")
  set(nvcc "${GPUPOOL_NVCC${ARG_TOOLKIT}}" -ccbin "${GPUPOOL_NVCC_HOST}")
  string(SHA1 kind "${ARG_OPTIONS}")
  string(SUBSTRING "${kind}" 0 8 kind)
  set(folder "${CMAKE_BINARY_DIR}/cuda/objects/cuda${ARG_TOOLKIT}-${kind}")
  set(objects)
  foreach(source IN LISTS ARG_SOURCES)
    get_filename_component(source "${source}" ABSOLUTE)
    get_filename_component(stem "${source}" NAME_WE)
    # Programs that differ in linking only share their objects.
    set(object "${folder}/${stem}.o")
    get_property(compiled DIRECTORY PROPERTY GPUPOOL_CUDA_OBJECTS)
    if(NOT object IN_LIST compiled)
      set_property(DIRECTORY APPEND PROPERTY GPUPOOL_CUDA_OBJECTS "${object}")
      add_custom_command(
        OUTPUT "${object}"
        COMMAND ${CMAKE_COMMAND} -E make_directory "${folder}"
        COMMAND ${CCACHE_PROGRAM} ${nvcc} "-I${CMAKE_SOURCE_DIR}" ${ARG_OPTIONS} -c "${source}" -o "${object}"
                -MD -MF "${object}.d" -MT "${object}"
        DEPENDS "${source}" ${ARG_DEPENDS}
        DEPFILE "${object}.d"
        COMMENT "Compiling ${stem}.cu for CUDA ${ARG_TOOLKIT} (${name})"
        VERBATIM)
    endif()
    list(APPEND objects "${object}")
  endforeach()
  # With --cudart none nvcc does not link device code by itself.
  if("-rdc=true" IN_LIST ARG_OPTIONS)
    file(GLOB device_runtime "${root}/lib*/libcudadevrt.a")
    list(GET device_runtime 0 device_runtime)
    set(linked "${CMAKE_BINARY_DIR}/cuda/objects/${name}/device_link.o")
    add_custom_command(
      OUTPUT "${linked}"
      COMMAND ${CMAKE_COMMAND} -E make_directory "${CMAKE_BINARY_DIR}/cuda/objects/${name}"
      COMMAND ${nvcc} ${ARG_OPTIONS} -dlink ${objects} "${device_runtime}" -o "${linked}"
      DEPENDS ${objects}
      COMMENT "Linking the device code of ${name}"
      VERBATIM)
    list(APPEND objects "${linked}")
    list(PREPEND cudart -Xlinker "${device_runtime}")
  endif()
  add_custom_command(
    OUTPUT "${program}"
    COMMAND ${nvcc} ${ARG_OPTIONS} --cudart none ${objects} -o "${program}" ${cudart}
    DEPENDS ${objects}
    COMMENT "Linking the CUDA ${ARG_TOOLKIT} program ${name} (${ARG_CUDART} cudart)"
    VERBATIM)
  add_custom_target(${name} ALL DEPENDS "${program}")
  set_target_properties(${name} PROPERTIES GPUPOOL_PROGRAM "${program}")
endfunction()
