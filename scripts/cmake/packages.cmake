# The libraries we link, all through pkg-config, as imported targets PkgConfig::<name>. With
# MF_STATIC the same targets are pointed at archives, so nothing else has to know.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)

foreach(package grpc libprotobuf-c jansson libcrypto sqlite3 openblas hwloc inih)
  string(MAKE_C_IDENTIFIER ${package} name)
  pkg_check_modules(${name} REQUIRED IMPORTED_TARGET ${package})
endforeach()
find_program(PROTOC_C protoc-c REQUIRED)
find_program(PROTOC protoc REQUIRED)

# Points PkgConfig::<name> at the archives of what `pkg-config --static` lists. They are scanned
# as a group because gRPC and abseil refer to each other. What glibc holds stays shared; Fortran's
# runtime serves OpenBLAS's LAPACK half, which we do not call.
function(mf_link_archives name)
  set(archives)
  foreach(library IN LISTS ${name}_STATIC_LIBRARIES)
    if(library MATCHES "^(dl|pthread|rt|atomic|m|gfortran|quadmath)$")
      continue()
    endif()
    find_library(MF_ARCHIVE_${library} NAMES lib${library}.a HINTS ${${name}_STATIC_LIBRARY_DIRS}
      REQUIRED)
    list(APPEND archives ${MF_ARCHIVE_${library}})
  endforeach()
  list(REMOVE_DUPLICATES archives)
  list(JOIN archives "," group)
  set_target_properties(PkgConfig::${name} PROPERTIES INTERFACE_LINK_LIBRARIES
    "$<LINK_GROUP:RESCAN,${group}>;${ARGN};m;${CMAKE_DL_LIBS};Threads::Threads")
endfunction()

if(MF_STATIC)
  # gRPC is C++ inside; its runtime comes from the compiler's own folder.
  execute_process(COMMAND ${CMAKE_C_COMPILER} -print-file-name=libstdc++.a
    OUTPUT_VARIABLE MF_STDCXX OUTPUT_STRIP_TRAILING_WHITESPACE)
  mf_link_archives(grpc ${MF_STDCXX})
  foreach(name libprotobuf_c jansson libcrypto sqlite3 openblas inih)
    mf_link_archives(${name})
  endforeach()
  # hwloc stays shared, Debian has no archive of the libudev it needs. DT_RPATH, not RUNPATH: only
  # the former is used for what a library in the bundle itself needs.
  add_link_options(-static-libgcc -Wl,--gc-sections -Wl,--disable-new-dtags)
endif()
