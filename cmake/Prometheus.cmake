# prometheus-cpp's text format, built from the distribution's source package.
#
# The packaged libraries are shared, on which a bundle may not depend. Its exposer needs a web server with threads of its
# own (CivetWeb), but the daemon serves the text on its event loop (server/daemon/metrics_endpoint.h). So only the
# serializer is compiled. scripts/install-dependencies puts the source into .deps/prometheus-cpp;
# GPUPOOL_PROMETHEUS_SOURCE names another folder.
#
#   gpupool_prometheus     prometheus/text_serializer.h and the metrics' types

set(GPUPOOL_PROMETHEUS_SOURCE "${CMAKE_SOURCE_DIR}/.deps/prometheus-cpp" CACHE PATH
    "prometheus-cpp's source: the folder that has core/src")
set(_prometheus_core "${GPUPOOL_PROMETHEUS_SOURCE}/core")
if(NOT EXISTS "${_prometheus_core}/src/text_serializer.cc")
  message(FATAL_ERROR "prometheus-cpp's source is not in ${GPUPOOL_PROMETHEUS_SOURCE}: run "
                      "scripts/install-dependencies, or set GPUPOOL_PROMETHEUS_SOURCE")
endif()
# Its own build generates this header, for shared libraries.
file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/generated-prometheus/prometheus/detail/core_export.h"
     CONTENT "#pragma once\n#define PROMETHEUS_CPP_CORE_EXPORT\n")

add_library(gpupool_prometheus STATIC "${_prometheus_core}/src/serializer.cc" "${_prometheus_core}/src/text_serializer.cc")
target_include_directories(gpupool_prometheus SYSTEM PUBLIC "${_prometheus_core}/include"
                           "${CMAKE_BINARY_DIR}/generated-prometheus")
target_compile_options(gpupool_prometheus PRIVATE -w)
