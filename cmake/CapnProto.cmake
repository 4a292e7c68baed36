# Cap'n Proto's serialisation, built position independent from the distribution's source package.
#
# The packaged libcapnp.a and libkj.a have initial-exec thread-local relocations, so they cannot be linked into our
# libcuda.so.1, which may need nothing but glibc's libraries at run time. The few sources that read and write messages
# are therefore compiled here (CAPNP_LITE: no RPC, no reflection, no I/O loop). scripts/install-dependencies puts them
# into .deps/capnproto; GPUPOOL_CAPNPROTO_SOURCE names another folder. The schema compiler `capnp` is the
# distribution's.
#
#   gpupool_capnp                                the library
#   gpupool_capnp_schema(target a.capnp ...)     a library of the code generated from the schemas, included by their
#                                                path in the source tree: "protocol/schema/session.capnp.h"

set(GPUPOOL_CAPNPROTO_SOURCE "${CMAKE_SOURCE_DIR}/.deps/capnproto" CACHE PATH
    "Cap'n Proto's source: the folder that has src/capnp, or c++/src/capnp")
set(_capnp_src "${GPUPOOL_CAPNPROTO_SOURCE}/src")
if(NOT EXISTS "${_capnp_src}/capnp/message.h")
  set(_capnp_src "${GPUPOOL_CAPNPROTO_SOURCE}/c++/src")
endif()
if(NOT EXISTS "${_capnp_src}/capnp/message.h")
  message(FATAL_ERROR "Cap'n Proto's source is not in ${GPUPOOL_CAPNPROTO_SOURCE}: run scripts/install-dependencies, "
                      "or set GPUPOOL_CAPNPROTO_SOURCE")
endif()

find_program(CAPNP_EXECUTABLE capnp DOC "Cap'n Proto's schema compiler")
find_program(CAPNPC_CXX_EXECUTABLE capnpc-c++ DOC "Its generator for C++")
if(NOT CAPNP_EXECUTABLE OR NOT CAPNPC_CXX_EXECUTABLE)
  message(FATAL_ERROR "`capnp` is not installed: run scripts/install-dependencies, or install the package capnproto")
endif()

# The generator and the headers must have the same version. Checked here because the compiler's message would be
# unclear.
file(STRINGS "${_capnp_src}/capnp/common.h" _capnp_lines REGEX "#define CAPNP_VERSION_(MAJOR|MINOR|MICRO) ")
string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*MICRO ([0-9]+).*" "\\1.\\2.\\3" _capnp_source_version
       "${_capnp_lines}")
execute_process(COMMAND ${CAPNP_EXECUTABLE} --version
                OUTPUT_VARIABLE _capnp_tool_version OUTPUT_STRIP_TRAILING_WHITESPACE)
string(REGEX MATCH "[0-9]+(\\.[0-9]+)+" _capnp_tool_version "${_capnp_tool_version}")
if(_capnp_tool_version MATCHES "^[0-9]+\\.[0-9]+$")
  string(APPEND _capnp_tool_version ".0")
endif()
if(NOT _capnp_tool_version VERSION_EQUAL _capnp_source_version)
  message(FATAL_ERROR "Cap'n Proto's compiler ${CAPNP_EXECUTABLE} is ${_capnp_tool_version} but its source in "
                      "${GPUPOOL_CAPNPROTO_SOURCE} is ${_capnp_source_version}: both must be one version. "
                      "Remove that folder and run scripts/install-dependencies.")
endif()
message(STATUS "Cap'n Proto ${_capnp_source_version}, source ${_capnp_src}")

# The sources that serialisation needs, of all versions from 0.8 to 1.1. Files that this version lacks are skipped.
set(_capnp_wanted
    kj/arena kj/array kj/common kj/debug kj/encoding kj/exception kj/hash kj/io kj/list kj/memory kj/mutex kj/refcount
    kj/source-location kj/string kj/string-tree kj/table kj/thread kj/time kj/units
    capnp/any capnp/arena capnp/blob capnp/c++.capnp capnp/layout capnp/list capnp/message capnp/schema.capnp
    capnp/serialize capnp/serialize-packed capnp/stream.capnp)
set(_capnp_sources)
foreach(name IN LISTS _capnp_wanted)
  if(EXISTS "${_capnp_src}/${name}.c++")
    list(APPEND _capnp_sources "${_capnp_src}/${name}.c++")
  endif()
endforeach()

add_library(gpupool_capnp STATIC ${_capnp_sources})
target_include_directories(gpupool_capnp SYSTEM PUBLIC "${_capnp_src}")
target_compile_definitions(gpupool_capnp PUBLIC CAPNP_LITE=1)
target_compile_options(gpupool_capnp PRIVATE -w)
if(GPUPOOL_SANITIZE MATCHES "undefined")
  # Its layout code adds offsets to null pointers for default values, which UBSan reports.
  target_compile_options(gpupool_capnp PRIVATE -fno-sanitize=undefined)
endif()
target_link_libraries(gpupool_capnp PUBLIC Threads::Threads)

function(gpupool_capnp_schema target)
  set(generated)
  file(RELATIVE_PATH folder "${CMAKE_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")
  set(output "${CMAKE_BINARY_DIR}/generated/${folder}")
  file(MAKE_DIRECTORY "${output}")
  foreach(schema IN LISTS ARGN)
    add_custom_command(
      OUTPUT "${output}/${schema}.h" "${output}/${schema}.c++"
      COMMAND ${CAPNP_EXECUTABLE} compile --no-standard-import -I "${_capnp_src}"
              "--src-prefix=${CMAKE_CURRENT_SOURCE_DIR}" "-o${CAPNPC_CXX_EXECUTABLE}:${output}"
              "${CMAKE_CURRENT_SOURCE_DIR}/${schema}"
      # A schema may import its neighbours, so each depends on all of them; they are few and compile quickly.
      DEPENDS ${ARGN}
      COMMENT "Generating ${folder}/${schema}.h"
      VERBATIM)
    list(APPEND generated "${output}/${schema}.c++")
    list(APPEND headers "${output}/${schema}.h")
  endforeach()
  add_library(${target} STATIC ${generated} ${headers})
  target_compile_options(${target} PRIVATE -w)
  target_include_directories(${target} SYSTEM PUBLIC "${CMAKE_BINARY_DIR}/generated")
  target_link_libraries(${target} PUBLIC gpupool_capnp)
endfunction()
