# Writes the source file of version() (common/version.h), at each build: cmake -D... -P write_version.cmake
#   NUMBER  the project's version
#   FROM    common/version.cpp.in
#   TO      the file to write; not touched if it has this content already, so that a build without a new commit compiles
#           and links nothing for it
#   SOURCE  the source folder
set(GPUPOOL_VERSION "${NUMBER}")
find_program(GIT git)
# A folder without .git may lie in another project's repository.
if(GIT AND EXISTS "${SOURCE}/.git")
  execute_process(
    COMMAND ${GIT} --no-optional-locks describe --always --exclude=* --abbrev=10 --dirty=-changed
    WORKING_DIRECTORY ${SOURCE} RESULT_VARIABLE failed OUTPUT_VARIABLE commit ERROR_QUIET
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT failed AND commit MATCHES "^[0-9a-f]+(-changed)?$")
    string(APPEND GPUPOOL_VERSION "+${commit}")
  endif()
endif()
configure_file(${FROM} ${TO} @ONLY)
