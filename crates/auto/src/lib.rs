//! The AutoManager driver: settings, connection, callbacks around the policy core
