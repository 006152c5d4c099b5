# The rules of the build: flags, and one function a kind of target.
set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
foreach(pair "GRPC;grpc" "PROTOBUFC;libprotobuf-c" "HIREDIS;hiredis" "UV;libuv" "JANSSON;jansson" "PCRE2;libpcre2-8"
             "UTF8PROC;libutf8proc" "MICROHTTPD;libmicrohttpd" "XXHASH;libxxhash")
    list(GET pair 0 name)
    list(GET pair 1 module)
    pkg_check_modules(${name} REQUIRED IMPORTED_TARGET ${module})
endforeach()

include(static_grpc)

add_library(sy_flags INTERFACE)
# No contraction anywhere: where a fused multiply-add is meant, the source says so, and every path rounds alike.
target_compile_options(sy_flags INTERFACE
    -Wall -Wextra -Werror -Wshadow -Wvla -Wformat=2 -Wundef -Wpointer-arith -Wwrite-strings -Wcast-qual
    -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition
    -fno-math-errno -ffp-contract=off -fno-omit-frame-pointer)
target_compile_definitions(sy_flags INTERFACE _GNU_SOURCE SY_VERSION="${PROJECT_VERSION}")
if(SY_SANITIZE)
    # Stacks name functions and lines, which is what a sanitizer shows; variables would take a fifth of the build.
    target_compile_options(sy_flags INTERFACE -g1 -fsanitize=${SY_SANITIZE} -fno-sanitize-recover=all)
    target_link_options(sy_flags INTERFACE -fsanitize=${SY_SANITIZE})
else()
    target_compile_options(sy_flags INTERFACE -g)
endif()
# For arithmetic, where no address of a local outlives a call: the stack on which AddressSanitizer looks for those that
# do takes half of its time.
set(sy_arithmetic_flags "")
if(SY_SANITIZE MATCHES "address" AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
    set(sy_arithmetic_flags --param=asan-use-after-return=0)
endif()

# sy_library(NAME [DEPS lib...] [EXTERNAL target...]): the folder's *.c as target sy_NAME. Its headers are seen by those
# who link it, and by nobody else; EXTERNAL is private, so third-party headers stay in .c files.
function(sy_library name)
    cmake_parse_arguments(ARG "" "" "DEPS;EXTERNAL" ${ARGN})
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.c)
    add_library(sy_${name} STATIC ${sources})
    target_include_directories(sy_${name} PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
    list(TRANSFORM ARG_DEPS PREPEND sy_)
    target_link_libraries(sy_${name} PUBLIC ${ARG_DEPS} PRIVATE sy_flags ${ARG_EXTERNAL})
endfunction()

# sy_program(NAME [DEPS lib...] [EXTERNAL target...]): the folder's *.c as an executable. All but *main.c is a library of
# its own, NAME_parts, so that tests can take the program apart.
function(sy_program name)
    cmake_parse_arguments(ARG "" "" "DEPS;EXTERNAL" ${ARGN})
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.c)
    file(GLOB main CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*main.c)
    list(REMOVE_ITEM sources ${main})
    list(TRANSFORM ARG_DEPS PREPEND sy_)
    add_library(${name}_parts STATIC ${sources})
    target_include_directories(${name}_parts PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
    target_link_libraries(${name}_parts PUBLIC ${ARG_DEPS} PRIVATE sy_flags ${ARG_EXTERNAL})
    add_executable(${name} ${main})
    target_link_libraries(${name} PRIVATE ${name}_parts sy_flags)
endfunction()
