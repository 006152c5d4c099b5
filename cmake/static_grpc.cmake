# sy_grpc: gRPC's core as lib/rpc links it. From archives a message takes 3 to 13 % less time than through shared objects
# (docs/decisions/0012): calls between gRPC and abseil no longer go through tables. The build without TLS is taken where
# there is one, since this system's links are plain; the sources stay C, only the C++ runtime is linked.
set(grpc_archives "")
set(grpc_archives_missing "")
pkg_check_modules(GRPC_UNSECURE QUIET grpc_unsecure)
# grpc_unsecure.pc leaves out what grpc.pc lists; the linker takes from each archive what is used, and that is all.
foreach(name grpc_unsecure ${GRPC_STATIC_LIBRARIES})
    if(NOT name MATCHES "^(grpc_unsecure|address_sorting|re2|upb|cares|gpr|absl_.*)$")
        continue()
    endif()
    find_library(SY_ARCHIVE_${name} NAMES lib${name}.a HINTS ${GRPC_LIBRARY_DIRS} ${GRPC_LIBDIR})
    mark_as_advanced(SY_ARCHIVE_${name})
    if(SY_ARCHIVE_${name})
        list(APPEND grpc_archives ${SY_ARCHIVE_${name}})
    else()
        list(APPEND grpc_archives_missing lib${name}.a)
    endif()
endforeach()
list(REMOVE_DUPLICATES grpc_archives)

set(static_grpc_default OFF)
if(NOT grpc_archives_missing AND NOT SY_SANITIZE)
    set(static_grpc_default ON)
endif()
option(SY_STATIC_GRPC "Link gRPC from archives instead of shared objects" ${static_grpc_default})

add_library(sy_grpc INTERFACE)
target_include_directories(sy_grpc INTERFACE ${GRPC_INCLUDE_DIRS})
if(SY_STATIC_GRPC)
    if(grpc_archives_missing)
        message(FATAL_ERROR "SY_STATIC_GRPC=ON, but there is no ${grpc_archives_missing}. Install the archives "
                            "(libgrpc-dev, libabsl-dev, libc-ares-dev, libre2-dev) or configure with -DSY_STATIC_GRPC=OFF")
    endif()
    # A program with the property SY_SHARED_GRPC keeps gRPC outside all the same.
    set(shared "$<BOOL:$<TARGET_PROPERTY:SY_SHARED_GRPC>>")
    target_link_libraries(sy_grpc INTERFACE
        "$<${shared}:PkgConfig::GRPC>"
        "$<$<NOT:${shared}>:-Wl,--start-group;${grpc_archives};-Wl,--end-group;z;stdc++;m;Threads::Threads>")
else()
    target_link_libraries(sy_grpc INTERFACE PkgConfig::GRPC)
endif()
